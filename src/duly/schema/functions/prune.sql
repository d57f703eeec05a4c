-- Retention: facts of finished jobs go once they are old enough, a whole day by DROP where nothing of it is to be kept, row by row
-- in small batches otherwise. A day is looked at once all of it is older than the shorter retention. A job is old enough p_keep
-- after it ended (p_keep_dead for a dead letter; null: never). Retention is about finished jobs only: one that still waits is kept.
-- An account may have times of its own, which go before these.

-- How long a finished job is kept. Asked for its account only where some account has times of its own (p_own).
create function duly.kept_for(p_job uuid, p_state text, p_keep interval, p_keep_dead interval, p_own boolean) returns interval
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_own interval;
begin
    if p_own then
        v_own := (
            select case p_state when 'dead' then a.keep_dead else a.keep end
            from duly.job j cross join lateral (select o.keep, o.keep_dead from duly.account o where o.id = j.account_id offset 0) a
            where j.id = p_job);
    end if;
    return coalesce(v_own, case p_state when 'dead' then p_keep_dead else p_keep end);
end $$;

create function duly.accounts_keep() returns boolean
language sql stable
begin atomic
    select exists (select from duly.account a where a.keep is not null or a.keep_dead is not null);
end;

-- The days, oldest first, that are old enough to be looked at. Ids up to a day old may still be enqueued, so never yesterday.
create function duly.prunable_days(p_keep interval, p_keep_dead interval) returns setof date
language plpgsql stable
as $$
begin
    return query
    select d.day from (
        select to_date(right(c.relname, 8), 'YYYYMMDD') as day
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'duly.job'::regclass offset 0) d   -- "offset 0": no other table's name is read as a day
    where d.day < (now() at time zone 'utc')::date - 1
      and (d.day + 1)::timestamp at time zone 'utc' <= now() - least(p_keep, p_keep_dead, (
          select least(min(a.keep), min(a.keep_dead)) from duly.account a where a.keep is not null or a.keep_dead is not null))
    order by d.day;
end $$;

-- Is something of the day to be kept: a job that has not ended, or one that ended too lately? Looks at p_limit finished jobs after p_after
-- (null: from the start, and first at what is seen at once: jobs that have not ended, and dead letters). last: where to go on, null
-- at the day's end. By key, so that what was pruned and vacuumed costs nothing.
create function duly.look_at_day(
    p_day date, p_after uuid, p_limit integer, p_keep interval, p_keep_dead interval, out needed boolean, out last uuid)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_from uuid := duly.uuid7_floor(p_day::timestamp at time zone 'utc');
    v_to   uuid := duly.uuid7_floor((p_day + 1)::timestamp at time zone 'utc');
    v_seen integer;
    v_own  boolean := duly.accounts_keep();
begin
    needed := p_after is null and (
        duly.has_not_ended(v_from, v_to)
        or exists (select from duly.outcome o where o.job_id >= v_from and o.job_id < v_to and o.state = 'dead'
                   and coalesce(o.finished_at > now() - duly.kept_for(o.job_id, o.state, p_keep, p_keep_dead, v_own), true)));
    if needed then
        return;
    end if;
    select count(*), (array_agg(s.job_id order by s.job_id desc))[1], coalesce(bool_or(not s.is_old), false) into v_seen, last, needed
    from (
        select o.job_id, coalesce(o.finished_at <= now() - duly.kept_for(o.job_id, o.state, p_keep, p_keep_dead, v_own), false) as is_old
        from duly.outcome o
        where o.job_id >= v_from and o.job_id < v_to and (p_after is null or o.job_id > p_after)
        order by o.job_id limit p_limit) s;
    if v_seen < p_limit then
        last := null;
    end if;
end $$;

-- Does some job with an id in this range wait or run? Asked in the order of the key: the other indexes have the id too, further
-- behind, and would be walked from end to end.
create function duly.has_not_ended(p_from uuid, p_to uuid) returns boolean
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
begin
    return (select s.job_id from duly.scheduled s where s.job_id >= p_from and s.job_id < p_to order by s.job_id limit 1) is not null
        or (select r.job_id from duly.ready r where r.job_id >= p_from and r.job_id < p_to order by r.job_id limit 1) is not null
        or (select l.job_id from duly.lease l where l.job_id >= p_from and l.job_id < p_to order by l.job_id limit 1) is not null;
end $$;

-- Drop a day of which nothing is to be kept, as a look that began at p_looked_at found. False: its tables are in use, or something of it
-- goes on again; look again later.
-- DROP takes ACCESS EXCLUSIVE on the parents too, and while it waits everybody waits behind it: so it waits 50 ms for each lock and gives
-- up. DETACH CONCURRENTLY would wait without being in the way, but not inside a function, and only the tables' owner may ask for it.
-- Outcomes never change, unless their job is redriven; a redrive that was not committed yet when the look began is found by its row, if
-- its transaction took less than a day. Runs as its owner, so that a run-time role needs no right to drop tables.
create function duly.drop_day(p_day date, p_looked_at timestamptz) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms'
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_from   uuid := duly.uuid7_floor(p_day::timestamp at time zone 'utc');
    v_to     uuid := duly.uuid7_floor((p_day + 1)::timestamp at time zone 'utc');
    v_suffix text := to_char(p_day, '_YYYYMMDD');
begin
    if p_day >= (now() at time zone 'utc')::date - 1 or to_regclass('duly.job' || v_suffix) is null
       or not pg_try_advisory_xact_lock(hashtext('duly.prune'), 0) or duly.has_not_ended(v_from, v_to) then
        return false;
    end if;
    lock table only duly.job, only duly.job_tag, only duly.attempt, only duly.outcome in access exclusive mode;
    if duly.has_not_ended(v_from, v_to) or exists (
        select from duly.redrive d where d.job_id >= v_from and d.job_id < v_to and d.redriven_at >= p_looked_at - interval '1 day') then
        return false;
    end if;
    execute format('drop table duly.%I, duly.%I, duly.%I, duly.%I', 'job_tag' || v_suffix, 'outcome' || v_suffix, 'attempt' || v_suffix, 'job' || v_suffix);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- Forget the redrives of jobs of a day that was dropped: up to p_limit, call again until it returns fewer.
create function duly.forget_redrives(p_day date, p_limit integer) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_gone integer;
begin
    if to_regclass('duly.job' || to_char(p_day, '_YYYYMMDD')) is not null then
        return 0;
    end if;
    delete from duly.redrive d where d.ctid = any (array(
        select r.ctid from duly.redrive r
        where r.job_id >= duly.uuid7_floor(p_day::timestamp at time zone 'utc') and r.job_id < duly.uuid7_floor((p_day + 1)::timestamp at time zone 'utc')
        order by r.job_id limit p_limit for update skip locked));
    get diagnostics v_gone = row_count;
    return v_gone;
end $$;

-- Look at the next p_limit finished jobs of a day after p_after (null: from its start) and delete those that are old enough, with their
-- attempts and redrives. last: where to go on, null at the day's end. next_at: when the first of those kept will be old enough.
-- busy: somebody else prunes just now, nothing was done.
create function duly.prune_day(
    p_day date, p_after uuid, p_limit integer, p_keep interval, p_keep_dead interval,
    out pruned integer, out last uuid, out next_at timestamptz, out busy boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_from uuid := duly.uuid7_floor(p_day::timestamp at time zone 'utc');
    v_to   uuid := duly.uuid7_floor((p_day + 1)::timestamp at time zone 'utc');
    v_old  uuid[];
    v_seen integer;
    v_own  boolean := duly.accounts_keep();
begin
    pruned := 0;
    busy := not pg_try_advisory_xact_lock(hashtext('duly.prune'), 0);
    if busy then
        return;
    end if;
    select array_agg(s.job_id) filter (where s.old_at <= now()), min(s.old_at) filter (where s.old_at > now()), count(*),
           (array_agg(s.job_id order by s.job_id desc))[1]
    into v_old, next_at, v_seen, last
    from (
        select o.job_id, o.finished_at + duly.kept_for(o.job_id, o.state, p_keep, p_keep_dead, v_own) as old_at
        from duly.outcome o
        where o.job_id >= v_from and o.job_id < v_to and (p_after is null or o.job_id > p_after)
        order by o.job_id limit p_limit) s;
    if v_seen < p_limit then
        last := null;
    end if;
    if v_old is null then
        return;
    end if;
    with gone as (   -- a job that is being redriven has no outcome any more once its redrive commits: it is not taken
        delete from duly.outcome o
        where o.job_id = any (v_old) and o.job_id >= v_from and o.job_id < v_to
          and o.finished_at + duly.kept_for(o.job_id, o.state, p_keep, p_keep_dead, v_own) <= now()
        returning o.job_id
    )
    select array_agg(g.job_id) into v_old from gone g;
    delete from duly.attempt a where a.job_id = any (v_old) and a.job_id >= v_from and a.job_id < v_to;
    delete from duly.redrive d where d.job_id = any (v_old);
    delete from duly.job_tag t where (t.project_id, t.tag, t.job_id) in (
        select j.project_id, unnest(j.tags), j.id from duly.job j where j.id = any (v_old) and j.id >= v_from and j.id < v_to and j.tags is not null);
    delete from duly.job j where j.id = any (v_old) and j.id >= v_from and j.id < v_to;
    pruned := coalesce(cardinality(v_old), 0);
end $$;
