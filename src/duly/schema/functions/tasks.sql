-- Jobs that are Python functions ("tasks"): kind "task:" and the function's name, payload the arguments by name. Any language may
-- enqueue them inside its own transaction, and so may triggers.

-- Whose such jobs are: project "tasks" of account "default". Made when first asked for; rivals wait for each other.
create function duly.task_project(out account_id integer, out project_id integer)
language plpgsql
as $$
#variable_conflict use_column
begin
    for i in 1 .. 3 loop
        select p.account_id, p.id into account_id, project_id
        from duly.account a join duly.project p on p.account_id = a.id and p.name = 'tasks' and p.deleted_at is null
        where a.name = 'default' and a.deleted_at is null;
        exit when found;
        insert into duly.account (public_id, name) select duly.uuid7(), 'default'
        where not exists (select from duly.account a where a.name = 'default' and a.deleted_at is null)
        on conflict (name) where deleted_at is null do nothing;
        insert into duly.project (public_id, account_id, name)
        select duly.uuid7(), a.id, 'tasks' from duly.account a where a.name = 'default' and a.deleted_at is null
        on conflict (account_id, name) where deleted_at is null do nothing;
    end loop;
    if account_id is null then   -- made by a rival that this transaction's snapshot does not see
        raise exception 'the project of tasks was made by a concurrent transaction' using errcode = '40001', hint = 'run the transaction again';
    end if;
end $$;

-- () → scheduled | ready, for an array of objects whose members are the columns named below; answers as duly.enqueue does, in no order.
create function duly.enqueue_tasks(p_jobs jsonb)
returns table (place integer, job_id uuid, result text, stored_at timestamptz, other uuid)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_owner        record;
    v_count        integer;
    v_ids          uuid[];
    v_queues       text[];
    v_kinds        text[];
    v_keys         text[];
    v_priorities   integer[];
    v_run_ats      timestamptz[];
    v_delays       double precision[];
    v_max_attempts integer[];
    v_timeouts     double precision[];
    v_expires_ats  timestamptz[];
    v_retries      jsonb[];
    v_tags         jsonb[];
    v_metadata     jsonb[];
    v_payloads     jsonb[];
    v_unique_keys  text[];
    v_unique_fors  text[];
    v_on_conflicts text[];
    v_has_unique   boolean;
begin
    select * into v_owner from duly.task_project();
    select count(*), array_agg(coalesce(g.id, duly.uuid7()) order by g.place), array_agg(g.queue order by g.place),
           array_agg('task:' || g.task order by g.place), array_agg(g.concurrency_key order by g.place),
           array_agg(g.priority order by g.place), array_agg(g.run_at order by g.place), array_agg(g.delay_seconds order by g.place),
           array_agg(g.max_attempts order by g.place), array_agg(g.timeout_seconds order by g.place),
           array_agg(coalesce(g.expires_at, clock_timestamp() + make_interval(secs => g.expires_seconds)) order by g.place),
           array_agg(g.retry order by g.place), array_agg(g.tags order by g.place), array_agg(g.metadata order by g.place),
           array_agg(g.args order by g.place), array_agg(g.unique_key order by g.place), array_agg(g.unique_for order by g.place),
           array_agg(g.on_conflict order by g.place), bool_or(g.unique_key is not null)
    into v_count, v_ids, v_queues, v_kinds, v_keys, v_priorities, v_run_ats, v_delays, v_max_attempts, v_timeouts, v_expires_ats,
         v_retries, v_tags, v_metadata, v_payloads, v_unique_keys, v_unique_fors, v_on_conflicts, v_has_unique
    from rows from (jsonb_to_recordset(p_jobs) as (
             id uuid, task text, args jsonb, queue text, concurrency_key text, priority integer, run_at timestamptz,
             delay_seconds double precision, max_attempts integer, timeout_seconds double precision, expires_at timestamptz,
             expires_seconds double precision, retry jsonb, tags jsonb, metadata jsonb, unique_key text, unique_for text, on_conflict text))
         with ordinality
         g (id, task, args, queue, concurrency_key, priority, run_at, delay_seconds, max_attempts, timeout_seconds, expires_at,
            expires_seconds, retry, tags, metadata, unique_key, unique_for, on_conflict, place);
    if v_count = 0 then
        return;
    end if;
    return query
    select e.place, v_ids[e.place], e.result, e.stored_at, e.other
    from duly.enqueue(
        v_ids, array_fill(v_owner.account_id, array[v_count]), array_fill(v_owner.project_id, array[v_count]), v_queues, v_kinds, v_keys,
        v_priorities, v_run_ats, v_delays, v_max_attempts, v_timeouts, v_expires_ats, v_retries, v_tags, v_metadata, v_payloads,
        array_fill(null::bytea, array[v_count]), case when v_has_unique then v_unique_keys else '{}' end,
        case when v_has_unique then v_unique_fors else '{}' end, case when v_has_unique then v_on_conflicts else '{}' end) e;
end $$;

-- Enqueue one task, for people and triggers: select duly.enqueue_task('mail.send', '{"to": "ada"}', delay => '10 minutes'). Returns the
-- job's id, or that of the job that holds the unique key (on_conflict 'keep'). What is wrong is an error of the statement.
create function duly.enqueue_task(
    task text, args jsonb default '{}', queue text default 'default', priority integer default 5, delay interval default null,
    run_at timestamptz default null, max_attempts integer default 8, timeout interval default '5 minutes', unique_key text default null,
    unique_for text default 'until_final', on_conflict text default 'keep', concurrency_key text default null, tags text[] default null,
    expires_at timestamptz default null, id uuid default null)
returns uuid
language plpgsql
as $$
declare
    v_wrong  text;
    v_answer record;
begin
    v_wrong := case
        when coalesce(enqueue_task.task, '') !~ '^[A-Za-z_][A-Za-z0-9_.:-]{0,149}$' then 'task: a name such as mail.send is needed'
        when coalesce(jsonb_typeof(enqueue_task.args), '') <> 'object' then 'args: a JSON object with the arguments by name is needed'
        when octet_length(enqueue_task.args::text) > 1000000 then 'args: ' || octet_length(enqueue_task.args::text) || ' bytes of JSON, and 1000000 are the limit: store it, and hand over where it is'
        when coalesce(enqueue_task.queue, '') !~ '^[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}$' then 'queue: letters, digits and . _ : / - only, at most 100'
        when enqueue_task.priority is null or enqueue_task.priority not between 0 and 9 then 'priority: 0 to 9'
        when enqueue_task.delay is not null and enqueue_task.run_at is not null then 'delay, run_at: give one of them'
        when not enqueue_task.delay between interval '0' and interval '366 days' then 'delay: 0 or more, at most 366 days'
        when not (enqueue_task.run_at >= timestamptz '0001-01-01 00:00+00' and enqueue_task.run_at < timestamptz '9999-01-01 00:00+00') then 'run_at: a moment of the years 1 to 9998'
        when not (enqueue_task.expires_at >= timestamptz '0001-01-01 00:00+00' and enqueue_task.expires_at < timestamptz '9999-01-01 00:00+00') then 'expires_at: a moment of the years 1 to 9998, or null for no end'
        when enqueue_task.max_attempts is null or enqueue_task.max_attempts not between 1 and 1000 then 'max_attempts: 1 to 1000'
        when enqueue_task.timeout is null or enqueue_task.timeout <= interval '0' or enqueue_task.timeout > interval '366 days' then 'timeout: more than 0, at most 366 days'
        when enqueue_task.unique_key is not null and length(enqueue_task.unique_key) not between 1 and 200 then 'unique_key: 1 to 200 characters'
        when enqueue_task.concurrency_key is not null and length(enqueue_task.concurrency_key) not between 1 and 200 then 'concurrency_key: 1 to 200 characters'
        when coalesce(enqueue_task.on_conflict, '') not in ('keep', 'error', 'replace') then 'on_conflict: keep, error or replace'
        when coalesce(enqueue_task.unique_for, '') !~ '^(until_start|until_final|[0-9]{1,8}([.][0-9]{1,6})?)$' then 'unique_for: until_start, until_final or seconds, less than 100000000'
    end;
    if v_wrong is not null then
        raise exception '%', v_wrong using errcode = '22023';
    end if;
    select * into v_answer from duly.enqueue_tasks(jsonb_build_array(jsonb_build_object(
        'id', enqueue_task.id, 'task', enqueue_task.task, 'args', enqueue_task.args, 'queue', enqueue_task.queue,
        'priority', enqueue_task.priority, 'delay_seconds', extract(epoch from enqueue_task.delay), 'run_at', enqueue_task.run_at,
        'max_attempts', enqueue_task.max_attempts, 'timeout_seconds', extract(epoch from enqueue_task.timeout),
        'unique_key', enqueue_task.unique_key, 'unique_for', case when enqueue_task.unique_key is not null then enqueue_task.unique_for end,
        'on_conflict', enqueue_task.on_conflict, 'concurrency_key', enqueue_task.concurrency_key, 'tags', to_jsonb(enqueue_task.tags),
        'expires_at', enqueue_task.expires_at)));
    case v_answer.result
        when 'kept' then
            return v_answer.other;
        when 'taken' then
            raise exception 'the unique key % is held by job %', enqueue_task.unique_key, v_answer.other
                using errcode = '23505', hint = 'wait for its end, cancel it, or choose another on_conflict';
        when 'conflict' then
            raise exception 'job id % is already used by a different job', enqueue_task.id
                using errcode = '23505', hint = 'take a new one from duly.uuid7(), or send the same job again';
        else
            return v_answer.job_id;
    end case;
end $$;

-- How a task stands, as JSON: state, reason, attempt, result, error (of the last attempt), progress. Null: no such task. One snapshot, in
-- which the job is in exactly one place.
create function duly.task_state(p_job uuid) returns json
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_end   duly.outcome;
    v_lease duly.lease;
    v_next  integer;
    v_error text;
begin
    perform from duly.job j where j.id = p_job and j.kind like 'task:%';
    if not found then
        return null;
    end if;
    select a.error into v_error from duly.attempt a where a.job_id = p_job order by a.number desc limit 1;
    select * into v_end from duly.outcome o where o.job_id = p_job;
    if found then
        return json_build_object('state', v_end.state, 'reason', v_end.reason, 'attempt', v_end.attempt, 'result', v_end.result,
                                 'error', v_error, 'progress', null);
    end if;
    select * into v_lease from duly.lease l where l.job_id = p_job;
    if found then
        return json_build_object('state', 'running', 'reason', null, 'attempt', v_lease.attempt, 'result', null,
                                 'error', v_error, 'progress', v_lease.progress);
    end if;
    -- in order of the key: other indexes end in the key too, and would be walked
    select r.attempt into v_next from duly.ready r where r.job_id between p_job and p_job order by r.job_id limit 1;
    if found then
        return json_build_object('state', 'ready', 'reason', null, 'attempt', v_next - 1, 'result', null, 'error', v_error, 'progress', null);
    end if;
    select s.attempt into v_next from duly.scheduled s where s.job_id between p_job and p_job order by s.job_id limit 1;
    return json_build_object('state', 'scheduled', 'reason', null, 'attempt', v_next - 1, 'result', null, 'error', v_error, 'progress', null);
end $$;

-- Note how far attempts have come, in the lease that each runs under. One whose lease is gone, or is being settled just now, is passed by.
create function duly.note_progress(p_ids uuid[], p_attempts integer[], p_progress jsonb[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_given record;
begin
    for v_given in
        select g.id, g.attempt, g.progress from unnest(p_ids, p_attempts, p_progress) g (id, attempt, progress)
    loop
        update duly.lease l set progress = v_given.progress where l.ctid = any (array(
            select x.ctid from duly.lease x where x.job_id = v_given.id and x.attempt = v_given.attempt limit 1 for update skip locked));
    end loop;
end $$;
