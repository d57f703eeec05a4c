-- A key belongs to one job of its project at a time: until it starts, until it is final, or for a time. Nobody gives a key back:
-- whether a job still holds it is read from the job's own state, so a key cannot leak and settling costs nothing more.

-- Whether the job that has a key still holds it. One snapshot, in which the job is in exactly one place.
-- start: it waits for the first attempt of its budget. final: it is not final. time: the time has not passed, and it was not cancelled.
create function duly.key_is_held(p_job uuid, p_until text, p_expires_at timestamptz) returns boolean
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    return case p_until
        when 'start' then   -- in order of the key: other indexes end in the key too, and would be walked
            (select s.attempt = 1 or s.trigger = 'redrive' from duly.scheduled s where s.job_id between p_job and p_job order by s.job_id limit 1)
            or (select r.attempt = 1 or r.trigger = 'redrive' from duly.ready r where r.job_id between p_job and p_job order by r.job_id limit 1)
        when 'final' then
            exists (select from duly.job j where j.id = p_job) and not exists (select from duly.outcome o where o.job_id = p_job)
        else
            p_expires_at > clock_timestamp()
            and not exists (select from duly.outcome o where o.job_id = p_job and o.state = 'cancelled')
    end is true;
end $$;

-- Take a key for a job that holds none yet. taken_by: somebody else holds it, and goes on doing so. replaced: somebody held it and
-- was withdrawn, as p_on_conflict = 'replace' asks for; a job that runs is not withdrawn. Both null: the key was free.
-- A key for a time runs from p_made_at. A rival that is not committed yet is waited for: its key counts if it commits, and does not if it rolls back.
create function duly.take_key(
    p_project integer, p_key text, p_job uuid, p_for text, p_on_conflict text, p_made_at timestamptz,
    out taken_by uuid, out replaced uuid)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_until   text := case p_for when 'until_start' then 'start' when 'until_final' then 'final' else 'time' end;
    v_expires timestamptz;
    v_held    duly.unique_key;
begin
    if v_until = 'time' then
        v_expires := p_made_at + make_interval(secs => p_for::double precision);
    end if;
    for i in 1 .. 20 loop   -- a row that is swept between two looks is made at the next one
        insert into duly.unique_key (project_id, key, job_id, until, expires_at)
        values (p_project, p_key, p_job, v_until, v_expires)
        on conflict do nothing;
        if found then
            return;
        end if;
        select * into v_held from duly.unique_key k where k.project_id = p_project and k.key = p_key for update;
        continue when not found;
        if v_held.job_id <> p_job and duly.key_is_held(v_held.job_id, v_held.until, v_held.expires_at) then
            if p_on_conflict is distinct from 'replace' or not duly.withdraw(v_held.job_id, 'replaced') then
                taken_by := v_held.job_id;
                return;
            end if;
            replaced := v_held.job_id;
        end if;
        update duly.unique_key k set job_id = p_job, until = v_until, expires_at = v_expires
        where k.project_id = p_project and k.key = p_key;
        return;
    end loop;
    raise exception 'the unique key moves too fast to be taken' using errcode = '40001', hint = 'try again';
end $$;

-- Take back a job that this transaction made and nobody has seen.
create function duly.unmake(p_job uuid) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    delete from duly.ready r where r.ctid = any (array(   -- in order of the key, as above
        select x.ctid from duly.ready x where x.job_id between p_job and p_job order by x.job_id limit 1));
    delete from duly.scheduled s where s.ctid = any (array(
        select x.ctid from duly.scheduled x where x.job_id between p_job and p_job order by x.job_id limit 1));
    perform duly.untag(p_job);
    delete from duly.job j where j.id = p_job;
end $$;

-- Take the keys of jobs just made, in the order of the keys, so that two batches do not lock each other out. Jobs whose key is
-- taken are unmade. Back come those jobs, and those that replaced another.
create function duly.take_keys(p_ids uuid[], p_keys text[], p_on_conflicts text[], p_made uuid[])
returns table (job_id uuid, taken_by uuid, replaced uuid)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_given record;
begin
    for v_given in
        select g.id, j.project_id, j.unique_key as key, j.unique_for, g.on_conflict
        from unnest(p_ids, p_keys, p_on_conflicts) with ordinality g (id, key, on_conflict, place)
        cross join lateral (   -- as it was made: an id may be given twice
            select j.project_id, j.unique_key, j.unique_for from duly.job j where j.id = g.id offset 0) j
        where g.key = j.unique_key and g.id = any (p_made)
        order by j.project_id, j.unique_key, g.place
    loop
        job_id := v_given.id;
        select t.taken_by, t.replaced into taken_by, replaced
        from duly.take_key(v_given.project_id, v_given.key, v_given.id, v_given.unique_for, v_given.on_conflict, clock_timestamp()) t;
        if taken_by is not null then
            perform duly.unmake(v_given.id);
        end if;
        if taken_by is not null or replaced is not null then
            return next;
        end if;
    end loop;
end $$;

-- Which of the jobs about to be made cannot have their key, as far as this snapshot tells: they need not be written in vain.
-- A job that is there already is not among them, it is a repeat.
create function duly.keys_taken(p_ids uuid[], p_projects integer[], p_keys text[], p_on_conflicts text[])
returns table (job_id uuid, taken_by uuid)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select g.id, k.job_id
    from unnest(p_ids, p_projects, p_keys, p_on_conflicts) g (id, project_id, key, on_conflict)
    cross join lateral (   -- "offset 0": by key for each
        select k.job_id, k.until, k.expires_at from duly.unique_key k where k.project_id = g.project_id and k.key = g.key offset 0) k
    where g.key is not null and g.on_conflict is distinct from 'replace' and k.job_id <> g.id
      and duly.key_is_held(k.job_id, k.until, k.expires_at)
      and (select j.id from duly.job j where j.id = g.id) is null;
end $$;

-- Forget keys that nobody holds. Looks at p_limit rows after the given place; returns the place to go on from, null at the end.
create function duly.sweep_keys(inout p_project integer, inout p_key text, p_limit integer)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
    v_row   duly.unique_key;
    v_count integer := 0;
begin
    for v_row in
        select * from duly.unique_key k where (k.project_id, k.key) > (p_project, p_key)
        order by k.project_id, k.key limit p_limit for update skip locked
    loop
        v_count := v_count + 1;
        p_project := v_row.project_id;
        p_key := v_row.key;
        if not duly.key_is_held(v_row.job_id, v_row.until, v_row.expires_at) then
            delete from duly.unique_key k where k.project_id = v_row.project_id and k.key = v_row.key;
        end if;
    end loop;
    if v_count < p_limit then
        p_project := null;
        p_key := null;
    end if;
end $$;
