-- What waits and what runs, by queue, for people. Every look is bounded by live segments and by a number of rows; what is more than that
-- is said to be more.

-- The segments of a line in which rows may live.
create function duly.all_live(p_line text) returns bigint[]
language plpgsql stable set enable_bitmapscan = off set jit = off
as $$
declare
    v_live record;
begin
    select * into v_live from duly.live_segments(p_line);
    return v_live.closed || array(select generate_series(v_live.upwards_from, (select c.last_value from duly.segment_current c)));
end $$;

-- The next lane of an account with due work after p_after; null if there is none.
create function duly.next_lane(p_live bigint[], p_account integer, p_after bigint) returns bigint
language plpgsql stable
as $$
begin
    return (
        select head.lane_id
        from unnest(p_live) live (segment)
        cross join lateral (
            select r.lane_id from duly.ready r
            where r.segment = live.segment and r.account_id = p_account and r.lane_id > p_after
            order by r.lane_id limit 1) head
        order by head.lane_id limit 1);
end $$;

-- Due jobs that wait, by account and queue, of one project or of all (null): up to p_lines queues, and p_rows jobs of each counted: where
-- there are more, p_rows or somewhat more is the answer. oldest_at: the earliest time at which one of those counted was due; some of every
-- segment are, since the oldest may be in any of them.
create function duly.backlog(p_account integer, p_project integer, p_lines integer, p_rows integer)
returns table (account_id integer, project_id integer, queue text, kind text, waiting bigint, oldest_at timestamptz)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_live    bigint[] := duly.all_live('ready');
    v_account integer := case when p_account is null then 0 else p_account - 1 end;
    v_lane    bigint;
    v_segment bigint;
    v_block   integer;
    v_found   bigint;
    v_oldest  timestamptz;
    v_seen    integer := 0;
begin
    loop
        v_account := duly.next_account(v_live, v_account);
        exit when v_account is null or v_account > p_account;
        v_lane := 0;
        loop
            v_lane := duly.next_lane(v_live, v_account, v_lane);
            exit when v_lane is null;
            v_block := v_lane >> 32;
            v_lane := ((v_block::bigint + 1) << 32) - 1;   -- on to the next queue
            v_seen := v_seen + 1;
            if v_seen > p_lines then
                return;
            end if;
            select b.account_id, b.project_id, b.queue, b.kind into account_id, project_id, queue, kind
            from duly.lane_block b where b.id = v_block;
            continue when project_id <> p_project;
            waiting := 0;
            oldest_at := null;
            foreach v_segment in array v_live loop
                select count(*), min(r.run_at) into v_found, v_oldest
                from (select x.run_at from duly.ready x
                      where x.segment = v_segment and x.account_id = v_account
                        and x.lane_id >= v_block::bigint << 32 and x.lane_id <= v_lane
                      order by x.account_id, x.lane_id, x.line_at limit greatest(p_rows - waiting, 100)) r;
                waiting := waiting + v_found;
                oldest_at := least(oldest_at, v_oldest);
            end loop;
            return next;
        end loop;
    end loop;
end $$;

-- Jobs under a lease, up to p_rows, by worker and queue.
create function duly.in_use(p_rows integer)
returns table (worker_id bigint, account_id integer, project_id integer, queue text, running bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_live bigint[] := duly.all_live('lease');
begin
    return query
    select held.worker_id, b.account_id, b.project_id, b.queue, held.running
    from (
        select l.worker_id, (l.lane_id >> 32)::integer as block_id, count(*) as running
        from (select x.worker_id, x.lane_id
              from unnest(v_live) live (segment)
              cross join lateral (select y.worker_id, y.lane_id from duly.lease y where y.segment = live.segment limit p_rows) x
              limit p_rows) l
        group by 1, 2) held
    cross join lateral (select c.account_id, c.project_id, c.queue from duly.lane_block c where c.id = held.block_id limit 1) b;
end $$;

-- What runs just now, up to p_rows jobs of one project or of all (null), those that began first.
create function duly.running_jobs(p_project integer, p_rows integer)
returns table (job_id uuid, worker_id bigint, attempt integer, claimed_at timestamptz, queue text, target text)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_live bigint[] := duly.all_live('lease');
begin
    return query
    select l.job_id, l.worker_id, l.attempt, l.claimed_at, j.queue, j.payload ->> 'url'
    from (select x.job_id, x.worker_id, x.attempt, x.claimed_at
          from unnest(v_live) live (segment)
          cross join lateral (select y.job_id, y.worker_id, y.attempt, y.claimed_at
                              from duly.lease y where y.segment = live.segment limit 20 * p_rows) x
          limit 20 * p_rows) l
    cross join lateral (
        select f.queue, f.payload from duly.job f where f.id = l.job_id and (p_project is null or f.project_id = p_project) limit 1) j
    order by l.claimed_at limit p_rows;
end $$;

-- The dead letters before p_before (null: from the newest), of one project or of all (null): those among the next p_look of everybody's,
-- newest id first; and one row without an id whose looked_to is the last of those looked at, null where there are no more: where to go on.
create function duly.dead_letters(p_project integer, p_before uuid, p_look integer)
returns table (job_id uuid, account_id integer, project_id integer, queue text, target text, reason text, attempts integer,
               finished_at timestamptz, outcome text, status_code smallint, error text, looked_to uuid)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
as $$
begin
    return query
    with looked as materialized (
        select o.job_id, o.reason, o.attempt, o.finished_at
        from duly.outcome o
        where o.state = 'dead' and o.job_id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        order by o.job_id desc limit p_look
    )
    select l.job_id, j.account_id, j.project_id, j.queue, j.payload ->> 'url', l.reason, l.attempt, l.finished_at, a.outcome,
           a.status_code, a.error, null::uuid
    from looked l
    cross join lateral (
        select f.account_id, f.project_id, f.queue, f.payload from duly.job f
        where f.id = l.job_id and (p_project is null or f.project_id = p_project) limit 1) j
    left join lateral (
        select t.outcome, t.status_code, t.error from duly.attempt t where t.job_id = l.job_id order by t.job_id desc, t.number desc limit 1) a on true
    union all
    select null, null, null, null, null, null, null, null, null, null, null, case when count(*) = p_look then min(l.job_id::text)::uuid end
    from looked l;
end $$;
