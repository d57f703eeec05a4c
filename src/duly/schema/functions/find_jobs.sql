-- Jobs of a project that match a filter, the newest id first: their ids, at most p_limit. A filter that an index serves is walked along that
-- index: unique_key, tag, the states dead and cancelled, the state running. Every other one is a look at the project's jobs one by one, and
-- after p_look of them the call ends, whatever it has found.
-- p_before: where the call before it ended (null: from the newest). place: where the next call goes on; null: there are no more.
-- Only facts are walked, which leave no dead rows behind; states are looked up by key for each.
--
-- p_filter: states (array), queue, tag, host, url_prefix, method, unique_key, created_from, created_to, run_at_from, run_at_to, finished_from,
-- finished_to (from is included, to is not), status_from, status_to (the last attempt's status code, both included), error (contained in the last
-- attempt's error, in any case), min_attempts.
create function duly.find_jobs(
    p_account integer, p_project integer, p_filter jsonb, p_before uuid, p_limit integer, p_look integer,
    out ids uuid[], out place uuid, out looked integer)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off
set enable_incremental_sort = off set jit = off
as $$
declare
    v_states        text[] := case when p_filter ? 'states' then array(select jsonb_array_elements_text(p_filter -> 'states')) end;
    v_queue         text := p_filter ->> 'queue';
    v_tag           text := p_filter ->> 'tag';
    v_host          text := p_filter ->> 'host';
    v_url_prefix    text := p_filter ->> 'url_prefix';
    v_method        text := p_filter ->> 'method';
    v_unique_key    text := p_filter ->> 'unique_key';
    v_created_from  timestamptz := p_filter ->> 'created_from';
    v_created_to    timestamptz := p_filter ->> 'created_to';
    v_run_at_from   timestamptz := p_filter ->> 'run_at_from';
    v_run_at_to     timestamptz := p_filter ->> 'run_at_to';
    v_finished_from timestamptz := p_filter ->> 'finished_from';
    v_finished_to   timestamptz := p_filter ->> 'finished_to';
    v_status_from   integer := p_filter ->> 'status_from';
    v_status_to     integer := p_filter ->> 'status_to';
    v_error         text := lower(p_filter ->> 'error');
    v_min_attempts  integer := p_filter ->> 'min_attempts';
    v_by_place      boolean := v_states is not null or v_finished_from is not null or v_finished_to is not null or v_min_attempts is not null;
    v_by_attempt    boolean := v_status_from is not null or v_error is not null;
    -- a job's id was made at most a day before it and ten minutes after it was created (see enqueue)
    v_oldest        uuid := coalesce(duly.uuid7_floor(v_created_from - interval '1 day'), '00000000-0000-0000-0000-000000000000');
    v_before        uuid := least(
        p_before, duly.uuid7_floor(v_created_to + interval '10 minutes'), duly.uuid7_floor(v_finished_to + interval '10 minutes'),
        'ffffffff-ffff-ffff-ffff-ffffffffffff');
    v_live          bigint[];
    v_walked        uuid[];
    v_chunk         integer := greatest(50, p_limit);
begin
    ids := '{}';
    looked := 0;
    loop
        v_chunk := least(v_chunk, p_look - looked);
        if v_unique_key is not null then
            v_walked := array(
                select j.id from duly.job j
                where j.project_id = p_project and j.unique_key = v_unique_key and j.id < v_before and j.id >= v_oldest
                order by j.id desc limit v_chunk);
        elsif v_tag is not null then
            v_walked := array(
                select t.job_id from duly.job_tag t
                where t.project_id = p_project and t.tag = v_tag and t.job_id < v_before and t.job_id >= v_oldest
                order by t.job_id desc limit v_chunk);
        elsif v_states <@ '{dead,cancelled}'::text[] then
            v_walked := duly.newest(v_chunk, array(
                select o.job_id from unnest(v_states) g (state)
                cross join lateral (
                    select o.job_id from duly.outcome o
                    where o.account_id = p_account and o.state = g.state and o.state <> 'succeeded' and o.job_id < v_before and o.job_id >= v_oldest
                    order by o.job_id desc limit v_chunk) o));
        elsif v_states <@ '{running}'::text[] then   -- bounded by what may run at a time
            v_live := (select s.closed || array(select generate_series(s.upwards_from, (select c.last_value from duly.segment_current c)))
                       from duly.live_segments('lease') s);
            v_walked := duly.newest(v_chunk, array(
                select l.job_id from unnest(v_live) g (segment)
                cross join lateral (select l.job_id from duly.lease l where l.segment = g.segment and l.account_id = p_account offset 0) l
                where l.job_id < v_before and l.job_id >= v_oldest));
        else
            v_walked := array(   -- in the order of the index, so that no other can be taken: by id alone it would go over everybody's jobs
                select j.id from duly.job j
                where (j.project_id, j.id) < (p_project, v_before) and j.project_id >= p_project and j.id < v_before and j.id >= v_oldest
                order by j.project_id desc, j.id desc limit v_chunk);
        end if;
        if v_walked = '{}' then
            place := null;
            return;
        end if;
        looked := looked + cardinality(v_walked);
        v_before := v_walked[cardinality(v_walked)];
        ids := ids || array(
            select j.id
            from unnest(v_walked) g (id)
            cross join lateral (   -- "offset 0": by key for each, in the order of the walk
                select j.* from duly.job j where j.id = g.id and j.id between v_before and v_walked[1] offset 0) j
            left join lateral (
                select o.state, o.attempt as attempts, o.finished_at from duly.outcome o
                where v_by_place and o.job_id = g.id and o.job_id between v_before and v_walked[1] offset 0) o on true
            left join lateral (
                select p.state, p.attempts from duly.whereabouts(g.id) p where v_by_place and o.state is null offset 0) p on true
            left join lateral (
                select a.status_code, a.error from duly.attempt a
                where v_by_attempt and a.job_id = g.id and a.job_id between v_before and v_walked[1]
                order by a.job_id desc, a.number desc limit 1) a on true
            where j.account_id = p_account and j.project_id = p_project
              and (v_states is null or coalesce(o.state, p.state) = any (v_states))
              and (v_queue is null or j.queue = v_queue)
              and (v_tag is null or v_tag = any (j.tags))
              and (v_unique_key is null or j.unique_key = v_unique_key)
              and (v_method is null or j.payload ->> 'method' = v_method)
              and (v_url_prefix is null or starts_with(j.payload ->> 'url', v_url_prefix))
              and (v_host is null or lower(substring(j.payload ->> 'url' from '^https?://(\[[^]]*\]|[^/:?]+)')) = v_host)
              and (v_created_from is null or j.created_at >= v_created_from)
              and (v_created_to is null or j.created_at < v_created_to)
              and (v_run_at_from is null or j.run_at >= v_run_at_from)
              and (v_run_at_to is null or j.run_at < v_run_at_to)
              and (v_finished_from is null or o.finished_at >= v_finished_from)
              and (v_finished_to is null or o.finished_at < v_finished_to)
              and (v_min_attempts is null or coalesce(o.attempts, p.attempts) >= v_min_attempts)
              and (v_status_from is null or a.status_code between v_status_from and v_status_to)
              and (v_error is null or position(v_error in lower(a.error)) > 0)
            limit p_limit - cardinality(ids));
        if cardinality(ids) >= p_limit then
            place := ids[cardinality(ids)];
            return;
        elsif cardinality(v_walked) < v_chunk then
            place := null;
            return;
        elsif looked >= p_look then
            place := v_before;
            return;
        end if;
        v_chunk := v_chunk * 2;
    end loop;
end $$;

-- The newest of these ids, in order.
create function duly.newest(p_most integer, p_ids uuid[]) returns uuid[]
language sql immutable
return array(select g.id from unnest(p_ids) g (id) order by g.id desc limit p_most);

-- Where a job is that has not ended, and how many attempts were started; no row: it has ended, or is none.
create function duly.whereabouts(p_job uuid) returns table (state text, attempts integer)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin   -- in order of the key: other indexes end in the key too, and would be walked
    return query
    select g.state, g.attempts from (
        (select 'running' as state, l.attempt as attempts from duly.lease l where l.job_id = p_job)
        union all
        (select 'ready', r.attempt - 1 from duly.ready r where r.job_id between p_job and p_job order by r.job_id limit 1)
        union all
        (select 'scheduled', s.attempt - 1 from duly.scheduled s where s.job_id between p_job and p_job order by s.job_id limit 1)) g
    limit 1;
end $$;
