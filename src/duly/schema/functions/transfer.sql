-- For bringing jobs in and out by files.

-- Those of these ids that jobs have, and whose jobs they are. By key for each.
create function duly.known_jobs(p_ids uuid[]) returns table (id uuid, account_id integer, project_id integer)
language sql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
    select j.id, j.account_id, j.project_id
    from unnest(p_ids) g (id)
    cross join lateral (select j.id, j.account_id, j.project_id from duly.job j where j.id = g.id limit 1) j
$$;

-- Those of these moments, given as the lowest id of their millisecond, at which an id was made that some job has.
create function duly.moments_with_jobs(p_floors uuid[], p_ceilings uuid[]) returns setof uuid
language sql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
    select g.low
    from unnest(p_floors, p_ceilings) g (low, high)
    cross join lateral (select j.id from duly.job j where j.id >= g.low and j.id < g.high order by j.id limit 1) j
$$;

-- The lowest id that a job has, null if there is none.
create function duly.oldest_job() returns uuid
language sql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
    select j.id from duly.job j order by j.id limit 1
$$;

-- The bodies of these jobs of a project; no row for those that have none. By key for each.
create function duly.bodies(p_account integer, p_project integer, p_ids uuid[]) returns table (id uuid, body bytea)
language sql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
    select j.id, j.body
    from unnest(p_ids) g (id)
    cross join lateral (
        select j.id, j.account_id, j.project_id, j.body from duly.job j where j.id = g.id limit 1) j
    where j.account_id = p_account and j.project_id = p_project and j.body is not null
$$;
