-- () → ready: a job of kind http for each of these jobs that asked to be told of the end it came to, with the outcome as its body. Called by
-- whatever has just written outcomes, in the same transaction: both exist or neither. No rows back; a job without a callback for its
-- end gets none.
--
-- Nothing is called twice: only who takes a lease away, and each lease is taken once, writes an outcome. The id is a fresh one all the
-- same: one that follows from job and attempt could be taken by somebody else beforehand, to keep the callback from being made.
-- The callback stands in the queue of its job, since who serves that one is there, without its key, whose room is for the jobs themselves.
create function duly.call_back(p_jobs uuid[]) returns void
language plpgsql
set enable_nestloop = on   -- not as in settle
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_count      integer;
    v_of         uuid[];
    v_ids        uuid[];
    v_accounts   integer[];
    v_projects   integer[];
    v_queues     text[];
    v_priorities integer[];
    v_payloads   jsonb[];
    v_bodies     bytea[];
begin
    select count(*), array_agg(c.id), array_agg(duly.uuid7()), array_agg(c.account_id), array_agg(c.project_id), array_agg(c.queue),
           array_agg(c.priority::integer), array_agg(c.callback), array_agg(convert_to(c.told::text, 'UTF8'))
    into v_count, v_of, v_ids, v_accounts, v_projects, v_queues, v_priorities, v_payloads, v_bodies
    from (
        select j.id, j.account_id, j.project_id, j.queue, j.priority,
               case o.state when 'succeeded' then j.on_success else j.on_dead end   -- in the trace of its job
                   || case when j.kind = 'http' and j.payload ? 'trace' then jsonb_build_object('trace', j.payload -> 'trace') else '{}' end as callback,
               json_build_object(
                   'id', j.id, 'state', o.state, 'reason', o.reason, 'attempts', o.attempt,
                   'last_status_code', a.status_code, 'last_error', a.error,
                   'finished_at', to_char(o.finished_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'tags', coalesce(to_jsonb(j.tags), '[]'), 'metadata', j.metadata, 'url', j.payload ->> 'url', 'result', o.result) as told
        from unnest(p_jobs) g (id)
        cross join lateral (   -- "offset 0": by key for each
            select j.* from duly.job j where j.id = g.id and j.callback_of is null offset 0) j
        cross join lateral (select o.* from duly.outcome o where o.job_id = g.id and o.state in ('succeeded', 'dead') offset 0) o
        left join lateral (
            select a.status_code, a.error from duly.attempt a where a.job_id = g.id order by a.number desc limit 1) a on true) c
    where c.callback is not null;
    if v_count = 0 then
        return;
    end if;
    perform duly.enqueue(
        v_ids, v_accounts, v_projects, v_queues, array_fill('http'::text, array[v_count]), '{}', v_priorities, '{}', '{}',
        array_fill(8, array[v_count]), array_fill(30::double precision, array[v_count]), '{}', '{}', '{}', '{}', v_payloads, v_bodies,
        p_callbacks_of => v_of);
end $$;
