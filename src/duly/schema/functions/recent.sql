-- What happened lately, for people. Facts are only ever added, so the latest lie at the end of their table: no index by time is
-- needed, and none is written. A bounded number of pages is read there, whatever the table's size and age. A row that filled a gap
-- further up is missed; that is rare, and these are figures for charts.

-- Where in the partitions of a fact ('attempt' or 'job', by the column p_time) the rows since p_since lie: pages first_page to last_page of
-- each. Found by halving: some twenty pages of a large partition, one of an old one.
create function duly.recent_pages(p_fact text, p_time text, p_since timestamptz)
returns table (partition text, first_page bigint, last_page bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_newest timestamptz;
    v_middle bigint;
    v_high   bigint;
begin
    if not has_table_privilege(session_user, 'duly.' || p_fact, 'select') then   -- it runs as its owner, since partitions may lack grants
        raise exception 'permission denied for table %', p_fact using errcode = '42501';
    end if;
    for partition, last_page in
        select c.relname, pg_relation_size(c.oid) / current_setting('block_size')::bigint - 1
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = ('duly.' || p_fact)::regclass order by c.relname desc limit 400
    loop
        continue when last_page < 0;
        v_newest := duly.newest_of_page(partition, p_time, last_page);
        continue when v_newest < p_since;
        first_page := 0;
        v_high := last_page;
        while first_page < v_high loop   -- a page without a row counts as new: the server adds several empty ones at a time
            v_middle := (first_page + v_high) / 2;
            if duly.newest_of_page(partition, p_time, v_middle) < p_since then
                first_page := v_middle + 1;
            else
                v_high := v_middle;
            end if;
        end loop;
        first_page := greatest(first_page - 4, 0);   -- several sessions fill a page each
        return next;
    end loop;
end $$;

create function duly.newest_of_page(p_partition text, p_time text, p_page bigint) returns timestamptz
language plpgsql stable
as $$
declare
    v_newest timestamptz;
begin
    execute format('select max(f.%I) from duly.%I f where f.ctid >= %L and f.ctid < %L', p_time, p_partition,
                   format('(%s,0)', p_page), format('(%s,0)', p_page + 1)) into v_newest;
    return v_newest;
end $$;

-- Runs of pages to read, p_pages at most: all of the recent ones with weight 1, or every weight-th.
create function duly.recent_runs(p_fact text, p_time text, p_since timestamptz, p_pages integer)
returns table (partition text, from_page bigint, to_page bigint, weight bigint)
language sql stable
as $$
    with place as materialized (
        select r.partition, r.first_page, r.last_page,
               ceil((sum(r.last_page - r.first_page + 1) over ()) / p_pages)::bigint as weight
        from duly.recent_pages(p_fact, p_time, p_since) r
    )
    select p.partition, p.first_page, p.last_page, p.weight from place p where p.weight = 1
    union all
    select p.partition, page, page, p.weight
    from place p cross join lateral generate_series(p.first_page, p.last_page, p.weight) page where p.weight > 1
$$;

-- Attempts that ended since p_since, of one project or of all (null), each standing for `weight` of them. waited_seconds: how late the
-- first attempt of a job began; target: the URL, of those that failed.
create function duly.recent_attempts(p_project integer, p_since timestamptz, p_pages integer)
returns table (finished_at timestamptz, outcome text, status_code smallint, seconds double precision, waited_seconds double precision,
               target text, weight bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_run record;
begin
    for v_run in select * from duly.recent_runs('attempt', 'finished_at', p_since, p_pages) loop
        return query execute format(
            $run$
            select a.finished_at, a.outcome, a.status_code, extract(epoch from a.finished_at - a.started_at)::float8,
                   case when a.number = 1 then greatest(extract(epoch from a.started_at - j.run_at), 0)::float8 end,
                   case when a.outcome <> 'success' then j.payload ->> 'url' end, $3
            from duly.%I a
            cross join lateral (
                select f.run_at, f.payload from duly.job f
                where f.id = a.job_id and ($1 is null or f.project_id = $1) limit 1) j
            where a.ctid >= %L and a.ctid < %L and a.finished_at >= $2
            $run$, v_run.partition, format('(%s,0)', v_run.from_page), format('(%s,0)', v_run.to_page + 1))
        using p_project, p_since, v_run.weight;
    end loop;
end $$;

-- When jobs were created since p_since, in the same way.
create function duly.recent_arrivals(p_project integer, p_since timestamptz, p_pages integer)
returns table (created_at timestamptz, weight bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_run record;
begin
    for v_run in select * from duly.recent_runs('job', 'created_at', p_since, p_pages) loop
        return query execute format(
            'select j.created_at, $3 from duly.%I j where j.ctid >= %L and j.ctid < %L and j.created_at >= $2 and ($1 is null or j.project_id = $1)',
            v_run.partition, format('(%s,0)', v_run.from_page), format('(%s,0)', v_run.to_page + 1))
        using p_project, p_since, v_run.weight;
    end loop;
end $$;
