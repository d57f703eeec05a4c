-- Whether one of a schedule's last 20 jobs has not ended. In order of the key: another index would be walked.
create function duly.schedule_is_busy(p_schedule uuid) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_incremental_sort = off set jit = off
as $$
declare
    v_job uuid;
begin
    for v_job in
        select f.job_id from duly.fire f where f.schedule_id between p_schedule and p_schedule
        order by f.schedule_id desc, f.fire_at desc limit 20
    loop
        if v_job is not null and duly.key_is_held(v_job, 'final', null) then
            return true;
        end if;
    end loop;
    return false;
end $$;

-- Schedules that are due, the longest due first, up to p_limit of them and up to p_bytes of what their jobs weigh, the first always.
-- Looks at the last minute only, so that it does not walk the entries of every fire ever made; with p_sweep at all the past (once a
-- minute, for what nobody looked at in time). p_tasks_only: those of tasks, for whoever has no keys and no egress policy; the others
-- cost it nothing. seen_at: the clock that says what is due. busy: one of the last 20 jobs has not ended.
create function duly.due_schedules(p_limit integer, p_bytes bigint, p_sweep boolean, p_tasks_only boolean)
returns table (schedule_id uuid, seen_at timestamptz, revision integer, next_fire_at timestamptz, since_at timestamptz, made bigint,
               waiting boolean, busy boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    return query
    select d.schedule_id, v_now, d.revision, d.next_fire_at, d.since_at, d.made, d.waiting_since is not null,
           d.overlap <> 'allow' and duly.schedule_is_busy(d.schedule_id)
    from (
        select t.schedule_id, t.look_at, t.revision, t.next_fire_at, t.since_at, t.made, t.waiting_since, s.overlap, s.weight_bytes,
               sum(s.weight_bytes) over (order by t.look_at, t.schedule_id rows unbounded preceding) as weight_so_far
        from (
            select v.schedule_id, v.look_at, v.revision, v.next_fire_at, v.since_at, v.made, v.waiting_since
            from unnest(case when p_tasks_only then '{t}' else '{f,t}' end::boolean[]) k (is_task)
            cross join lateral (
                select u.schedule_id, u.look_at, u.revision, u.next_fire_at, u.since_at, u.made, u.waiting_since
                from duly.schedule_turn u
                where u.is_task = k.is_task
                  and u.look_at > case when p_sweep then '-infinity' else v_now - interval '1 minute' end and u.look_at <= v_now
                order by u.look_at, u.schedule_id limit p_limit) v
            order by v.look_at, v.schedule_id limit p_limit) t
        cross join lateral (
            select x.overlap, x.weight_bytes from duly.schedule x where x.id = t.schedule_id offset 0) s) d
    where d.weight_so_far - d.weight_bytes < p_bytes
    order by d.look_at, d.schedule_id;
end $$;

-- How long nobody needs to look: until the next look, p_at_most_seconds if none is before; 0 if one is due.
create function duly.until_next_look(p_at_most_seconds double precision, p_tasks_only boolean) returns double precision
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_first timestamptz;
begin
    v_first := (select min(l.look_at)
                from unnest(case when p_tasks_only then '{t}' else '{f,t}' end::boolean[]) k (is_task)
                cross join lateral (
                    select t.look_at from duly.schedule_turn t
                    where t.is_task = k.is_task
                      and t.look_at > v_now - interval '1 minute' and t.look_at < v_now + make_interval(secs => p_at_most_seconds)
                    order by t.look_at limit 1) l);
    return greatest(0, coalesce(extract(epoch from v_first - v_now), p_at_most_seconds));
end $$;

-- Move schedules to their next fire (null: the last was made, it ends) and write down what became of the fires between. A row back for
-- each fire whose job is to be made, in the same transaction: none for a schedule that is not as it was read (somebody else fired,
-- edited or paused it), that somebody has in hand, and none for a fire that is there already.
-- The transaction must go on at once: an owner that falls silent in it loses it after five seconds.
create function duly.take_fires(
    p_schedules uuid[], p_revisions integer[], p_next_was timestamptz[], p_nexts timestamptz[], p_sinces timestamptz[], p_looks timestamptz[],
    p_of uuid[], p_fire_ats timestamptz[], p_outcomes text[], p_covers integer[], p_jobs uuid[])
returns table (schedule_id uuid, fire_at timestamptz)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_taken uuid[];
begin
    perform set_config('idle_in_transaction_session_timeout', '5s', true);
    v_taken := array(
        select l.schedule_id
        from (select u.id, u.revision, u.next_was from unnest(p_schedules, p_revisions, p_next_was) u (id, revision, next_was)
              order by u.id) g
        cross join lateral (
            select t.schedule_id from duly.schedule_turn t
            where t.schedule_id = g.id and t.state = 'active' and t.revision = g.revision and t.next_fire_at = g.next_was
            offset 0 for update skip locked) l);
    return query
    with written as (
        insert into duly.fire (schedule_id, fire_at, trigger, outcome, covers, job_id)
        select f.id, f.fire_at, 'schedule', f.outcome, f.covers, f.job_id
        from unnest(p_of, p_fire_ats, p_outcomes, p_covers, p_jobs) f (id, fire_at, outcome, covers, job_id)
        where f.id = any (v_taken)
        order by f.id, f.fire_at
        on conflict do nothing
        returning schedule_id, fire_at, outcome
    ), moved as (
        update duly.schedule_turn t
        set next_fire_at = g.next, since_at = g.since, look_at = g.look, waiting_since = null,
            state = case when g.next is null then 'ended' else 'active' end,
            made = t.made + (select count(*) from written w where w.schedule_id = t.schedule_id and w.outcome = 'made'),
            last_fire_at = coalesce(
                (select max(w.fire_at) from written w where w.schedule_id = t.schedule_id and w.outcome = 'made'), t.last_fire_at)
        from unnest(p_schedules, p_nexts, p_sinces, p_looks) g (id, next, since, look)
        where t.schedule_id = g.id and t.schedule_id = any (v_taken)
    )
    select w.schedule_id, w.fire_at from written w where w.outcome = 'made';
end $$;

-- A fire waits: for the job before it (p_waits), or for a key that is missing. Looked at again after a while.
create function duly.put_off(p_schedule uuid, p_revision integer, p_next_was timestamptz, p_for_seconds double precision, p_waits boolean)
returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    update duly.schedule_turn t
    set look_at = clock_timestamp() + make_interval(secs => p_for_seconds),
        waiting_since = case when p_waits then coalesce(t.waiting_since, clock_timestamp()) else t.waiting_since end
    where t.schedule_id = p_schedule and t.revision = p_revision and t.next_fire_at = p_next_was and t.state = 'active';
end $$;

-- active → parked: the schedule cannot fire as it is stored. False: it is not as it was read.
create function duly.park(p_schedule uuid, p_revision integer, p_next_was timestamptz, p_why text) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    update duly.schedule_turn t
    set state = 'parked', parked_why = p_why, next_fire_at = null, look_at = null, waiting_since = null
    where t.schedule_id = p_schedule and t.revision = p_revision and t.next_fire_at = p_next_was and t.state = 'active';
    return found;
end $$;

-- Fires from a moment on that are older than p_before go, p_limit at most. The moment of the last that went; null: there are no more.
create function duly.prune_fires(p_from timestamptz, p_before timestamptz, p_limit integer) returns timestamptz
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_last timestamptz;
begin
    with gone as (
        delete from duly.fire f
        where f.ctid = any (array(
            select o.ctid from duly.fire o where o.fire_at >= p_from and o.fire_at < p_before
            order by o.fire_at limit p_limit for update skip locked))
        returning f.fire_at
    )
    select max(g.fire_at) into v_last from gone g;
    return v_last;
end $$;

-- Fires whose job was not made after all (its unique key is another job's): made → skipped. In the transaction that took them.
create function duly.refuse_fires(p_schedules uuid[], p_fire_ats timestamptz[], p_whys text[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    for n in 1 .. cardinality(p_schedules) loop
        update duly.fire f set outcome = 'skipped', job_id = null, why = p_whys[n]
        where f.schedule_id = p_schedules[n] and f.fire_at = p_fire_ats[n] and f.trigger = 'schedule';
    end loop;
end $$;
