-- How much there is of everything, for the metrics: never more than a bounded look, whatever the tables hold.
-- Rows are counted up to p_at_most. Where there are more, PostgreSQL's running estimate is given, and `estimated` names the figure.
-- finished: always an estimate. oldest_due_seconds: how long the job that has been due the longest has waited, paused queues left out;
-- null: nothing is due. With more ready jobs than p_at_most it is a lower bound, from those counted and from the heads of p_heads
-- lines of a lane and a segment, the oldest segments first.
-- promote_late_seconds: for how long the promoter should have looked and did not (0: it is in time).
create function duly.figures(
    p_at_most integer, p_heads integer,
    out scheduled bigint, out ready bigint, out running bigint, out dead bigint, out finished bigint, out breakers bigint, out estimated text[],
    out oldest_due_seconds double precision, out promote_late_seconds double precision,
    out ready_segments integer, out lease_segments integer, out ready_dead_rows bigint, out lease_dead_rows bigint, out scheduled_dead_rows bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_now     timestamptz := clock_timestamp();
    v_ready   bigint[];
    v_lease   bigint[];
    v_blocks  integer[];
    v_oldest  timestamptz[];
    v_overdue bigint;
    v_since   timestamptz;
    v_segment bigint;
    v_account integer;
    v_lane    bigint;
    v_run_at  timestamptz;
    v_left    integer := p_heads;
    v_next    bigint := (select p.last_value from duly.promote_at p);
begin
    estimated := '{finished}';
    select l.closed || array(select generate_series(l.upwards_from, (select c.last_value from duly.segment_current c)))
    into v_ready from duly.live_segments('ready') l;
    select l.closed || array(select generate_series(l.upwards_from, (select c.last_value from duly.segment_current c)))
    into v_lease from duly.live_segments('lease') l;
    ready_segments := cardinality(v_ready);
    lease_segments := cardinality(v_lease);

    with seen as (
        select s.lane_id, s.run_at from unnest(v_ready) live (segment)
        cross join lateral (
            select r.lane_id, r.run_at from duly.ready r where r.segment = live.segment limit p_at_most + 1) s
        limit p_at_most + 1
    ), blocks as (
        select (s.lane_id >> 32)::integer as block_id, count(*) as jobs, min(s.run_at) as run_at from seen s group by 1
    )
    select coalesce(sum(b.jobs), 0), coalesce(array_agg(b.block_id), '{}'), coalesce(array_agg(b.run_at), '{}')
    into ready, v_blocks, v_oldest from blocks b;
    if ready > p_at_most then
        estimated := estimated || 'ready'::text;
        ready := greatest(ready, pg_stat_get_live_tuples('duly.ready'::regclass));
        foreach v_segment in array v_ready loop
            v_account := 0;
            v_lane := 0;
            while v_left > 0 loop
                v_left := v_left - 1;
                select r.account_id, r.lane_id, r.run_at into v_account, v_lane, v_run_at
                from duly.ready r
                where r.segment = v_segment and (r.account_id, r.lane_id) > (v_account, v_lane)
                order by r.account_id, r.lane_id, r.line_at, r.job_id limit 1;
                exit when not found;
                v_blocks := v_blocks || (v_lane >> 32)::integer;
                v_oldest := v_oldest || v_run_at;
            end loop;
        end loop;
    end if;
    select min(b.run_at) into v_since
    from unnest(v_blocks, v_oldest) b (block_id, run_at)
    join duly.lane_block k on k.id = b.block_id
    where not exists (select from duly.queue q where q.project_id = k.project_id and q.name = k.queue and q.paused);

    -- Due and not promoted yet: within seconds where a promoter runs. Further back lie the dead entries of what it has promoted.
    select count(*), least(v_since, min(s.run_at)) into v_overdue, v_since
    from (select s.run_at from duly.scheduled s where s.run_at > v_now - interval '10 seconds' and s.run_at <= v_now
          order by s.run_at limit p_at_most) s;
    oldest_due_seconds := case when v_since is not null then greatest(0, extract(epoch from v_now - v_since)) end;
    promote_late_seconds := case when v_next = 0 then 0 else greatest(0, extract(epoch from v_now) - v_next / 1000.0) end;
    select count(*) into scheduled
    from (select from duly.scheduled s where s.run_at > v_now and s.run_at < '9999-12-31 00:00+00' limit p_at_most + 1) s;
    scheduled := scheduled + v_overdue;
    if scheduled > p_at_most then
        estimated := estimated || 'scheduled'::text;
        scheduled := greatest(scheduled, pg_stat_get_live_tuples('duly.scheduled'::regclass));
    end if;

    select count(*) into running
    from (select from unnest(v_lease) live (segment)
          cross join lateral (select from duly.lease l where l.segment = live.segment limit p_at_most + 1) l
          limit p_at_most + 1) l;
    if running > p_at_most then
        estimated := estimated || 'running'::text;
        running := greatest(running, pg_stat_get_live_tuples('duly.lease'::regclass));
    end if;

    select count(*) into dead from (select from duly.outcome o where o.state = 'dead' limit p_at_most + 1) o;
    if dead > p_at_most then
        estimated := estimated || 'dead'::text;
        dead := greatest(dead, (
            select sum(greatest(c.reltuples, 0)) from pg_inherits i join pg_class c on c.oid = i.inhrelid
            where i.inhparent = 'duly.outcome_dead'::regclass));
    end if;
    select coalesce(sum(greatest(c.reltuples, pg_stat_get_live_tuples(c.oid))), 0) into finished
    from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'duly.outcome'::regclass;

    select count(*) into breakers from (select from duly.breaker b where b.account_id > 0 limit p_at_most + 1) b;
    if breakers > p_at_most then
        estimated := estimated || 'breakers'::text;
    end if;
    ready_dead_rows := pg_stat_get_dead_tuples('duly.ready'::regclass);
    lease_dead_rows := pg_stat_get_dead_tuples('duly.lease'::regclass);
    scheduled_dead_rows := pg_stat_get_dead_tuples('duly.scheduled'::regclass);
end $$;

-- Who keeps vacuum from what lies dead, the worst first, p_at_most of them: sessions with a snapshot or a transaction id, prepared
-- transactions, standbys, and the slots of standbys that are away. transactions: how many have begun since. seconds: null where nobody
-- knows. A role that may not see other sessions sees its own only (see pg_monitor).
create function duly.snapshot_holders(p_at_most integer)
returns table (kind text, name text, role text, pid integer, state text, seconds double precision, transactions bigint)
language sql stable
begin atomic
    select h.kind, h.name, h.role, h.pid, h.state, extract(epoch from clock_timestamp() - h.since)::double precision, h.transactions::bigint
    from (
        select 'session' as kind, a.application_name as name, a.usename::text as role, a.pid, a.state, a.xact_start as since,
               greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions
        from pg_stat_activity a
        where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
          and a.datname = current_database() and a.backend_type <> 'autovacuum worker'
        union all
        select 'prepared transaction', p.gid, p.owner::text, null, null, p.prepared, age(p.transaction)
        from pg_prepared_xacts p where p.database = current_database()
        union all
        select 'standby', r.application_name, r.usename::text, r.pid, r.state, null, age(r.backend_xmin)
        from pg_stat_replication r where r.backend_xmin is not null
        union all
        select 'replication slot', s.slot_name::text, null, s.active_pid, case when s.active then 'active' else 'inactive' end, null, age(s.xmin)
        from pg_replication_slots s where s.xmin is not null
    ) h
    order by h.transactions desc, h.since nulls last limit p_at_most;
end;
