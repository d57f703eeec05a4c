-- How many attempts of a queue may start over time. Tokens come evenly, limit ÷ seconds of them, and a queue keeps a tenth of the limit at
-- most (one at least): its block. So in any stretch of time it starts no more than the rate gives, and one block. All that is
-- stored is when the block is full again; tokens are taken by the claim that leases the jobs, in its transaction: with it they
-- are gone or were never taken, and no worker holds any.

create function duly.rate_block(p_limit integer) returns integer
language sql immutable
return ceil(p_limit / 10.0)::integer;

-- When a queue's block is full again; null: it always was.
create function duly.rate_full_at(p_project integer, p_queue text) returns timestamptz
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    return (select r.full_at from duly.rate r where r.project_id = p_project and r.queue = p_queue order by r.full_at desc limit 1);
end $$;

-- How many seconds of tokens it lacks until then.
create function duly.rate_debt(p_project integer, p_queue text) returns double precision
language plpgsql stable
as $$
begin
    return greatest(0, extract(epoch from duly.rate_full_at(p_project, p_queue) - clock_timestamp()));
end $$;

-- In how many seconds a queue may go on; 0: it may now. It goes on when the tokens of 50 ms are there, so that a fast one is not looked
-- at for every single token.
create function duly.rate_wait(p_project integer, p_queue text, p_limit integer, p_seconds double precision) returns double precision
language plpgsql stable
as $$
declare
    v_block integer := duly.rate_block(p_limit);
begin
    return greatest(0, duly.rate_debt(p_project, p_queue)
        - (v_block - least(v_block, greatest(1, floor(p_limit * 0.05 / p_seconds)))) * p_seconds / p_limit);
end $$;

-- How many tokens there are.
create function duly.rate_tokens(p_project integer, p_queue text, p_limit integer, p_seconds double precision) returns integer
language plpgsql stable
as $$
begin
    return floor(duly.rate_block(p_limit) - duly.rate_debt(p_project, p_queue) * p_limit / p_seconds + 0.000001)::integer;
end $$;

-- Take tokens, under a lock on the queue's row.
create function duly.spend(p_project integer, p_queue text, p_limit integer, p_seconds double precision, p_count integer) returns void
language plpgsql
as $$
begin
    insert into duly.rate (project_id, queue, full_at)
    values (p_project, p_queue,
            greatest(duly.empty_rate(p_project, p_queue), clock_timestamp()) + make_interval(secs => p_count * p_seconds / p_limit));
end $$;

-- Take the row away; returns what it said.
create function duly.empty_rate(p_project integer, p_queue text) returns timestamptz
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_full_at timestamptz := duly.rate_full_at(p_project, p_queue);
begin
    delete from duly.rate r where r.project_id = p_project and r.queue = p_queue and r.full_at = v_full_at;
    return v_full_at;
end $$;
