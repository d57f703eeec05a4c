-- What applies to a queue or an account from now on. Whoever changes it waits until the claims under way that have served it have ended
-- (see limits_of), and those that come meanwhile pass it by: so it binds every claim that is not committed when this commits. What
-- runs goes on, also above a limit that was lowered.

create function duly.change_queue(p_project integer, p_name text) returns void
language plpgsql set lock_timeout = '5s'
as $$
begin
    perform pg_advisory_xact_lock(hashtext('duly.queue'), hashtext(p_project || p_name));
end $$;

-- p_paused null: as it was.
create function duly.set_queue(
    p_project integer, p_name text, p_concurrency integer, p_key_concurrency integer, p_rate_limit integer, p_rate_seconds double precision,
    p_defaults jsonb, p_paused boolean)
returns void
language plpgsql
as $$
declare
    v_full_at timestamptz;
begin
    perform duly.change_queue(p_project, p_name);
    insert into duly.queue as q (project_id, name, concurrency, key_concurrency, rate_limit, rate_seconds, defaults, paused)
    values (p_project, p_name, p_concurrency, p_key_concurrency, p_rate_limit, p_rate_seconds, p_defaults, coalesce(p_paused, false))
    on conflict (project_id, name) do update
    set concurrency = excluded.concurrency, key_concurrency = excluded.key_concurrency, rate_limit = excluded.rate_limit,
        rate_seconds = excluded.rate_seconds, defaults = excluded.defaults, paused = coalesce(p_paused, q.paused);
    -- A new rate begins with what is missing of the old one, but nobody waits longer than it takes to fill its own block.
    v_full_at := duly.empty_rate(p_project, p_name);
    if v_full_at is not null and p_rate_limit is not null then
        insert into duly.rate (project_id, queue, full_at)
        values (p_project, p_name, least(v_full_at,
                clock_timestamp() + make_interval(secs => duly.rate_block(p_rate_limit) * p_rate_seconds / p_rate_limit)));
    end if;
    perform duly.wake();
end $$;

create function duly.pause_queue(p_project integer, p_name text, p_paused boolean) returns void
language plpgsql
as $$
begin
    perform duly.change_queue(p_project, p_name);
    insert into duly.queue as q (project_id, name, paused) values (p_project, p_name, p_paused)
    on conflict (project_id, name) do update set paused = excluded.paused;
    perform duly.wake();
end $$;

-- Forget what was set. False: nothing was.
create function duly.unset_queue(p_project integer, p_name text) returns boolean
language plpgsql
as $$
declare
    v_found boolean;
begin
    perform duly.change_queue(p_project, p_name);
    delete from duly.queue q where q.project_id = p_project and q.name = p_name;
    v_found := found;
    perform duly.empty_rate(p_project, p_name);
    perform duly.wake();
    return v_found;
end $$;

create function duly.set_account_weight(p_account integer, p_weight integer) returns void
language sql
begin atomic
    update duly.account a set weight = p_weight where a.id = p_account;
end;
