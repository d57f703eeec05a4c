-- () → scheduled | ready. One row back for each job given, in no order: its position, when it was stored, and
--   created: it exists now · repeated: it was there already, the same job (a repeat after a lost reply) ·
--   conflict: another job has this id; nothing was changed · taken, kept: the job `other` holds the unique key, and this one was
--   not made; kept where p_on_conflicts says keep.
-- A created job that took its unique key from a waiting one names that as `other`: it is cancelled.
-- p_patience: how long to wait for each lock that a rival holds (a lock_timeout, for the rest of the transaction); null: as it is set.
-- Due now goes to ready in the current segment, later to scheduled; the number is read inside the inserting statement,
-- which already holds its lock on ready: see segment_holders.
create function duly.enqueue(
    p_ids uuid[], p_accounts integer[], p_projects integer[], p_queues text[], p_kinds text[], p_keys text[],
    p_priorities integer[], p_run_ats timestamptz[], p_delays double precision[], p_max_attempts integer[],
    p_timeouts double precision[], p_expires_ats timestamptz[], p_retries jsonb[], p_tags jsonb[], p_metadata jsonb[],
    p_payloads jsonb[], p_bodies bytea[], p_unique_keys text[] default '{}', p_unique_fors text[] default '{}',
    p_on_conflicts text[] default '{}', p_on_successes jsonb[] default '{}', p_on_deads jsonb[] default '{}',
    p_callbacks_of uuid[] default '{}', p_patience text default null, p_replays_of uuid[] default '{}')
returns table (place integer, result text, stored_at timestamptz, other uuid)
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := clock_timestamp();
    v_oldest  uuid := duly.uuid7_floor(clock_timestamp() - interval '24 hours');
    v_newest  uuid := duly.uuid7_floor(clock_timestamp() + interval '10 minutes');
    v_given   integer := cardinality(p_ids);
    v_placed  integer;
    v_due     integer;
    v_later   timestamptz;
    v_created uuid[];
    v_refused uuid[] := '{}';   -- their unique key is taken
    v_holders uuid[] := '{}';   -- by these
    v_new     uuid[] := '{}';   -- they took their key from a waiting job
    v_old     uuid[] := '{}';   -- these
    v_lanes   bigint[];
    v_called  integer := 0;     -- how many have callbacks, which will stand in other lanes:
    v_whose   integer[] := '{}';
    v_where   integer[] := '{}';
    v_in      text[] := '{}';
begin
    if p_patience is not null then
        perform set_config('lock_timeout', p_patience, true);
    end if;
    if to_regclass(to_char((v_now + interval '10 minutes') at time zone 'utc', '"duly.job_"YYYYMMDD')) is null then
        perform duly.add_days(4);
    end if;
    if exists (select from unnest(p_ids) id where id < v_oldest or id > v_newest or substr(id::text, 15, 1) <> '7') then
        raise exception 'a job id must be a UUIDv7 made in the last 24 hours and not more than 10 minutes ahead'
            using errcode = '22023', hint = 'take one from duly.uuid7(), or set the clock of the machine that makes them';
    end if;

    if p_on_successes <> '{}' or p_on_deads <> '{}' then
        -- Made now: a settle that made it would wait for a transaction that has made it and stays open, with all it settles.
        select count(*), coalesce(array_agg(g.account_id), '{}'), coalesce(array_agg(g.project_id), '{}'), coalesce(array_agg(g.queue), '{}')
        into v_called, v_whose, v_where, v_in
        from unnest(p_accounts, p_projects, p_queues, p_on_successes, p_on_deads) g (account_id, project_id, queue, on_success, on_dead)
        where g.on_success is not null or g.on_dead is not null;
    end if;
    v_lanes := duly.lanes_of(p_accounts, p_projects, p_queues, p_kinds, p_keys);
    if array_position(v_lanes, null) is not null or array_position(
            duly.lanes_of(v_whose, v_where, v_in, array_fill('http'::text, array[v_called]), '{}'), null) is not null then
        perform duly.make_lanes(
            v_whose || p_accounts, v_where || p_projects, v_in || p_queues, array_fill('http'::text, array[v_called]) || p_kinds,
            array_fill(null::text, array[v_called]) || p_keys);
        v_lanes := duly.lanes_of(p_accounts, p_projects, p_queues, p_kinds, p_keys);
    end if;
    if array_position(v_lanes, null) is not null then   -- made by a rival that this transaction's snapshot does not see
        raise exception 'a lane was made by a concurrent transaction' using errcode = '40001', hint = 'run the transaction again';
    end if;

    if p_unique_keys <> '{}' then
        select coalesce(array_agg(t.job_id), '{}'), coalesce(array_agg(t.taken_by), '{}') into v_refused, v_holders
        from duly.keys_taken(p_ids, p_projects, p_unique_keys, p_on_conflicts) t;
    end if;

    with made as (
        insert into duly.job (
            id, account_id, project_id, lane_id, queue, concurrency_key, kind, priority, max_attempts, timeout_seconds,
            run_at, created_at, expires_at, retry, tags, metadata, payload, body, unique_key, unique_for,
            on_success, on_dead, callback_of, replay_of)
        select g.id, g.account_id, g.project_id, g.lane_id, g.queue, g.key, g.kind, g.priority, g.max_attempts, g.timeout_seconds,
               coalesce(g.run_at, v_now + make_interval(secs => coalesce(g.delay_seconds, 0))), v_now, g.expires_at, g.retry,
               case when g.tags is not null then array(select jsonb_array_elements_text(g.tags)) end,
               g.metadata, g.payload, g.body, g.unique_key, g.unique_for, g.on_success, g.on_dead, g.callback_of, g.replay_of
        from unnest(p_ids, p_accounts, p_projects, v_lanes, p_queues, p_keys, p_kinds, p_priorities, p_max_attempts, p_timeouts,
                    p_run_ats, p_delays, p_expires_ats, p_retries, p_tags, p_metadata, p_payloads, p_bodies, p_unique_keys, p_unique_fors,
                    p_on_successes, p_on_deads, p_callbacks_of, p_replays_of)
             g (id, account_id, project_id, lane_id, queue, key, kind, priority, max_attempts, timeout_seconds,
                run_at, delay_seconds, expires_at, retry, tags, metadata, payload, body, unique_key, unique_for,
                on_success, on_dead, callback_of, replay_of)
        where g.id <> all (v_refused)
        order by g.id
        on conflict (id) do nothing
        returning id, account_id, lane_id, priority, run_at, max_attempts
    ), due as (
        insert into duly.ready (segment, job_id, run_at, line_at, lane_id, account_id, priority, attempt, final_attempt, trigger)
        select (select c.last_value from duly.segment_current c), m.id, m.run_at, duly.line_at(m.run_at, m.priority), m.lane_id, m.account_id,
               m.priority, 1, m.max_attempts, 'schedule'
        from made m where m.run_at <= v_now
        returning job_id
    ), later as (
        insert into duly.scheduled (job_id, account_id, priority, attempt, lane_id, run_at, final_attempt, trigger)
        select m.id, m.account_id, m.priority, 1, m.lane_id, m.run_at, m.max_attempts, 'schedule'
        from made m where m.run_at > v_now
    )
    select array_agg(m.id), count(*), (select count(*) from due), min(m.run_at) filter (where m.run_at > v_now)
    into v_created, v_placed, v_due, v_later from made m;

    if v_placed > 0 and exists (select from unnest(p_tags) t where t is not null) then
        perform duly.tag(v_created);
    end if;
    if p_unique_keys <> '{}' and v_placed > 0 then
        select v_refused || coalesce(array_agg(t.job_id) filter (where t.taken_by is not null), '{}'),
               v_holders || coalesce(array_agg(t.taken_by) filter (where t.taken_by is not null), '{}'),
               coalesce(array_agg(t.job_id) filter (where t.replaced is not null), '{}'),
               coalesce(array_agg(t.replaced) filter (where t.replaced is not null), '{}')
        into v_refused, v_holders, v_new, v_old
        from duly.take_keys(p_ids, p_unique_keys, p_on_conflicts, v_created) t;
    end if;
    perform duly.advance_after(v_due, 20000, 4);
    if v_due > 0 then
        perform duly.wake();
    end if;
    if v_later is not null then
        perform duly.wake_promoter(v_later);
    end if;
    if v_placed = v_given and v_refused = '{}' and v_old = '{}' then
        return query select n, 'created'::text, v_now, null::uuid from generate_series(1, v_given) n;
        return;
    end if;
    return query
    with given as (
        select g.*, row_number() over (partition by g.id order by g.place) as nth
        from unnest(p_ids, p_accounts, p_projects, p_queues, p_kinds, p_keys, p_payloads, p_bodies, p_priorities, p_max_attempts,
                    p_timeouts, p_run_ats, p_delays, p_expires_ats, p_retries, p_metadata, p_tags, p_unique_keys, p_unique_fors,
                    p_on_conflicts, p_on_successes, p_on_deads, p_callbacks_of) with ordinality
             g (id, account_id, project_id, queue, kind, key, payload, body, priority, max_attempts, timeout_seconds,
                run_at, delay_seconds, expires_at, retry, metadata, tags, unique_key, unique_for, on_conflict,
                on_success, on_dead, callback_of, place)
    )
    select g.place::integer,
           case when g.id = any (v_refused) then case g.on_conflict when 'keep' then 'kept' else 'taken' end
                when g.nth = 1 and g.id = any (v_created) then 'created'
                when (j.account_id, j.project_id, j.queue, j.kind, j.priority, j.max_attempts, j.timeout_seconds)
                         = (g.account_id, g.project_id, g.queue, g.kind, g.priority, g.max_attempts, g.timeout_seconds::real)
                     and duly.is_same_payload(j.kind, j.payload, g.payload)
                     and j.run_at = coalesce(g.run_at, j.created_at + make_interval(secs => coalesce(g.delay_seconds, 0)))
                     and (j.concurrency_key, j.body, j.expires_at, j.retry, j.metadata, j.unique_key, j.unique_for,
                          j.on_success, j.on_dead, j.callback_of, j.tags) is not distinct from
                         (g.key, g.body, g.expires_at, g.retry, g.metadata, g.unique_key, g.unique_for,
                          g.on_success, g.on_dead, g.callback_of,
                          case when g.tags is not null then array(select jsonb_array_elements_text(g.tags)) end) then 'repeated'
                else 'conflict' end,
           coalesce(j.created_at, v_now),
           coalesce(v_holders[array_position(v_refused, g.id)], v_old[array_position(v_new, g.id)])
    from given g left join duly.job j on j.id = g.id;
end $$;

-- Whether two payloads ask for the same. The trace that an HTTP job belongs to is no part of it: a client that repeats a request
-- does so in a span of its own.
create function duly.is_same_payload(p_kind text, p_one jsonb, p_other jsonb) returns boolean
language sql immutable
return case when p_kind = 'http' and jsonb_typeof(p_one) = 'object' and jsonb_typeof(p_other) = 'object'
            then p_one - 'trace' = p_other - 'trace' else p_one = p_other end;
