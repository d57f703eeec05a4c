-- running → ready, for leases that the worker never heard of: a claim was committed and its answer lost. They did not start,
-- so they keep their attempt number. Returns how many.
create function duly.give_back(p_worker bigint, p_heard uuid[], p_closed bigint[], p_upwards_from bigint) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_ids      uuid[];
    v_attempts integer[];
    v_refused  integer;
begin
    select array_agg(l.job_id), array_agg(l.attempt) into v_ids, v_attempts
    from unnest(p_closed || array(select generate_series(p_upwards_from, (select c.last_value from duly.segment_current c)))) live (segment)
    cross join lateral (   -- "offset 0": segment by segment, whatever the planner believes of lease
        select l.job_id, l.attempt from duly.lease l
        where l.segment = live.segment and l.worker_id = p_worker and not l.job_id = any (p_heard) offset 0) l;
    if v_ids is null then
        return 0;
    end if;
    select count(*) into v_refused from duly.settle(
        p_worker, v_ids, v_attempts, array_fill('release'::text, array[cardinality(v_ids)]),
        '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}');
    return cardinality(v_ids) - v_refused;
end $$;
