-- Write down what claiming and pruning read of an account's limits: its own, else its plan's. p_account null: all accounts of
-- p_plan. A disabled account may run nothing. What runs goes on, also above a limit that was lowered.
create function duly.apply_limits(p_account integer, p_plan text default null) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set lock_timeout = '5s'
as $$
begin
    if p_account is not null then   -- binds claims under way too (see settings); those of a plan's thousands, from the next claim on
        perform pg_advisory_xact_lock(hashtext('duly.account'), p_account);
    end if;
    update duly.account a
    set concurrency = case when a.disabled_at is not null or a.deleted_at is not null then 0 else (l.limits ->> 'running')::integer end,
        keep = make_interval(secs => (l.limits ->> 'keep')::double precision),
        keep_dead = make_interval(secs => (l.limits ->> 'keep_dead')::double precision)
    from (
        select b.id, coalesce(p.limits, '{}') || b.limits as limits
        from duly.account b left join duly.plan p on p.name = b.plan
        where b.id = p_account or (p_account is null and b.plan = p_plan)
        order by b.id for no key update of b) l
    where a.id = l.id;
    perform duly.wake();
end $$;

-- Take p_wanted of an account's jobs for this month, in a block of at most p_block beyond it. taken: 0 if the quota does not
-- allow p_wanted. remains: what nobody has taken then. ends_in: seconds until the month ends, by this clock (UTC). One account's takers stand
-- in line, so that a quota is never exceeded; their rows are added up, some hundred of them at most.
create function duly.take_quota(
    p_account integer, p_quota bigint, p_wanted bigint, p_block bigint, out taken bigint, out remains bigint, out ends_in double precision)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_month date;   -- read under the lock: nobody takes of a month that has ended
begin
    perform pg_advisory_xact_lock(hashtext('duly.take_quota'), p_account);
    v_month := date_trunc('month', clock_timestamp() at time zone 'utc')::date;
    ends_in := extract(epoch from (v_month + interval '1 month') at time zone 'utc' - clock_timestamp());
    remains := p_quota - (select coalesce(sum(b.size), 0) from duly.quota_block b where b.account_id = p_account and b.month = v_month);
    taken := case when remains < p_wanted then 0 else least(remains, greatest(p_wanted, p_block)) end;
    if taken > 0 then
        insert into duly.quota_block (account_id, month, size) values (p_account, v_month, taken);
        remains := remains - taken;
    end if;
end $$;

-- Give back what was taken and not used, if the month in which it was taken has not ended.
create function duly.give_back_quota(p_account integer, p_size bigint, p_ends_in double precision) returns void
language sql
begin atomic
    insert into duly.quota_block (account_id, month, size)
    select p_account, date_trunc('month', clock_timestamp() at time zone 'utc')::date, -p_size
    where p_ends_in > 0;
end;

-- What of its quota an account has taken this month, what was given back taken off.
create function duly.quota_taken(p_account integer) returns bigint
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    return (select coalesce(sum(b.size), 0) from duly.quota_block b
            where b.account_id = p_account and b.month = date_trunc('month', now() at time zone 'utc')::date);
end $$;

-- Forget the blocks of months that have ended, up to p_limit rows.
create function duly.forget_quotas(p_limit integer) returns integer
language plpgsql
as $$
declare
    v_gone integer;
begin
    delete from duly.quota_block b where b.ctid = any (array(
        select o.ctid from duly.quota_block o
        where o.month < date_trunc('month', now() at time zone 'utc')::date - 31 limit p_limit for update skip locked));
    get diagnostics v_gone = row_count;
    return v_gone;
end $$;

-- How many jobs of an account have not ended, counted no further than p_at_most. Live segments only, and of scheduled what is not long
-- overdue: what lies dead elsewhere is not walked.
create function duly.stored(p_account integer, p_at_most integer) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_count integer := duly.running(p_account, 0, 9223372036854775807, p_at_most);
begin
    if v_count < p_at_most then
        v_count := v_count + duly.waiting(p_account, p_at_most - v_count);
    end if;
    if v_count < p_at_most then
        v_count := v_count + (
            select count(*) from (
                select from duly.scheduled s
                where s.account_id = p_account and s.run_at > now() - interval '1 minute'
                limit p_at_most - v_count) later);
    end if;
    return v_count;
end $$;

-- How many jobs of an account are due and wait for a slot, counted no further than p_at_most.
create function duly.waiting(p_account integer, p_at_most integer) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_closed  bigint[];
    v_upwards bigint;
begin
    select s.closed, s.upwards_from into v_closed, v_upwards from duly.live_segments('ready') s;
    return (
        select count(*) from (
            select from unnest(v_closed || array(select generate_series(v_upwards, (select c.last_value from duly.segment_current c)))) live (segment)
            cross join lateral (
                select from duly.ready r
                where r.segment = live.segment and r.account_id = p_account
                limit p_at_most) one
            limit p_at_most) counted);
end $$;

-- When the longest waiting of an account's jobs became due: of those at the head of its lanes, looked for at p_places places at most,
-- the same number in each segment and one at the least. Behind a head of higher priority one may wait that is older, by an hour a level at most (see line.sql). Null: none waits.
create function duly.oldest_due(p_account integer, p_places integer) returns timestamptz
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_closed  bigint[];
    v_upwards bigint;
    v_live    bigint[];
    v_segment bigint;
    v_lane    bigint;
    v_run_at  timestamptz;
    v_oldest  timestamptz;
begin
    select s.closed, s.upwards_from into v_closed, v_upwards from duly.live_segments('ready') s;
    v_live := v_closed || array(select generate_series(v_upwards, (select c.last_value from duly.segment_current c)));
    foreach v_segment in array v_live loop
        v_lane := -1;
        for n in 1 .. greatest(1, p_places / cardinality(v_live)) loop
            select r.lane_id, r.run_at into v_lane, v_run_at
            from duly.ready r
            where r.segment = v_segment and r.account_id = p_account and r.lane_id > v_lane
            order by r.segment, r.account_id, r.lane_id, r.line_at, r.job_id limit 1;
            exit when not found;
            v_oldest := least(v_oldest, v_run_at);
        end loop;
    end loop;
    return v_oldest;
end $$;

-- Has a project a job that has not ended? Its lanes are looked through in ready and lease; what its account has scheduled is read until one
-- of the project's is found.
create function duly.project_has_jobs(p_account integer, p_project integer) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_blocks  bigint[] := array(select b.id::bigint from duly.lane_block b where b.account_id = p_account and b.project_id = p_project);
    v_block   bigint;
    v_closed  bigint[];
    v_upwards bigint;
begin
    select s.closed, s.upwards_from into v_closed, v_upwards from duly.live_segments('ready') s;
    foreach v_block in array v_blocks loop
        if duly.running(p_account, v_block << 32, (v_block << 32) + 4294967295, 1) > 0 or exists (
            select from unnest(v_closed || array(select generate_series(v_upwards, (select c.last_value from duly.segment_current c)))) live (segment)
            cross join lateral (
                select from duly.ready r
                where r.segment = live.segment and r.account_id = p_account
                  and r.lane_id between v_block << 32 and (v_block << 32) + 4294967295
                limit 1) one) then
            return true;
        end if;
    end loop;
    return exists (select from duly.scheduled s where s.account_id = p_account and s.lane_id >> 32 = any (v_blocks));
end $$;

-- What an account may run at once, whatever its plan says; null: what its plan says.
create function duly.set_account_concurrency(p_account integer, p_concurrency integer) returns void
language plpgsql
as $$
begin
    update duly.account a
    set limits = case when p_concurrency is null then a.limits - 'running' else a.limits || jsonb_build_object('running', p_concurrency) end
    where a.id = p_account;
    perform duly.apply_limits(p_account);
end $$;

-- What an account uses, at a cost that does not grow with what it has: backlogs are counted no further than p_at_most.
create function duly.usage(
    p_account integer, p_at_most integer, out slots_in_use integer, out due integer, out oldest_due_at timestamptz, out stored integer,
    out quota_taken bigint, out quota_resets_at timestamptz, out asked_at timestamptz)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_late integer;
begin
    asked_at := clock_timestamp();
    slots_in_use := duly.running(p_account, 0, 9223372036854775807, 1000000);
    due := duly.waiting(p_account, p_at_most);
    select count(*), min(l.run_at) into v_late, oldest_due_at from (   -- due, and not promoted yet
        select s.run_at from duly.scheduled s
        where s.account_id = p_account and s.run_at > asked_at - interval '1 minute' and s.run_at <= asked_at
        order by s.run_at limit p_at_most) l;
    due := least(p_at_most, due + v_late);
    oldest_due_at := least(oldest_due_at, duly.oldest_due(p_account, 1000));
    stored := duly.stored(p_account, p_at_most);
    quota_taken := duly.quota_taken(p_account);
    quota_resets_at := (date_trunc('month', asked_at at time zone 'utc') + interval '1 month') at time zone 'utc';
end $$;
