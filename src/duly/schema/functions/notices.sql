-- What notices tell of (see duly.service.noticing). Every look is bounded by a window of time, or by what its scope has.

-- Dead letters since p_since of an account, of one of its projects (null: all) or of everybody (null), in groups, the largest first: p_look of
-- them are looked at, the newest first. Deliveries of notices are left out: nobody is to be told of those by another. Redriven ones are no
-- dead letters any more. host: null where a job has no target.
create function duly.recent_deaths(p_account integer, p_project integer, p_since timestamptz, p_look integer)
returns table (project_id integer, host text, reason text, outcome text, status_code smallint, dead bigint, since timestamptz)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_sort = off   -- in the order of its index, or another index of the dead is taken
set jit = off
as $$
begin
    return query
    with looked as materialized (
        select o.job_id, o.reason, o.finished_at
        from duly.outcome o
        where o.state = 'dead' and o.finished_at >= p_since and (p_account is null or o.account_id = p_account)
        order by o.finished_at desc limit p_look
    )
    select j.project_id, j.host, l.reason, a.outcome, a.status_code, count(*), min(l.finished_at)
    from looked l
    cross join lateral (
        select f.project_id, substring(f.payload ->> 'url' from '^[^:/]*://(?:[^/?#]*@)?([^/?#]*)') as host
        from duly.job f
        where f.id = l.job_id and (p_project is null or f.project_id = p_project) and not (f.kind = 'http' and f.payload ? 'notice')
        limit 1) j
    left join lateral (
        select t.outcome, t.status_code from duly.attempt t where t.job_id = l.job_id order by t.job_id desc, t.number desc limit 1) a on true
    group by 1, 2, 3, 4, 5 order by 6 desc, 1, 2, 3, 4, 5;
end $$;

-- Schedules of an account, of one of its projects (null: all) or of everybody (null) that do not fire: parked, or overdue for more than
-- p_late_seconds. p_limit at most, by id. Those of disabled accounts do not fire on purpose. Reads all schedules of that scope.
create function duly.silent_schedules(p_account integer, p_project integer, p_late_seconds double precision, p_limit integer)
returns table (schedule_id uuid, project_id integer, name text, state text, due_at timestamptz, why text)
language plpgsql stable set jit = off
as $$
begin
    if p_account is null then
        return query
        select t.schedule_id, s.project_id, s.name, t.state, t.due_at, t.parked_why
        from (select x.schedule_id, x.state, x.parked_why,
                     case when x.waiting_since is null then x.next_fire_at else x.look_at end as due_at
              from duly.schedule_turn x) t
        join duly.schedule s on s.id = t.schedule_id
        join duly.account a on a.id = s.account_id
        join duly.project p on p.id = s.project_id
        where (t.state = 'parked' or t.due_at < clock_timestamp() - make_interval(secs => p_late_seconds))
          and a.disabled_at is null and a.deleted_at is null and p.deleted_at is null
        order by t.schedule_id limit p_limit;
        return;
    end if;
    return query
    select t.schedule_id, s.project_id, s.name, t.state, t.due_at, t.parked_why
    from duly.project p
    cross join lateral (select x.id, x.project_id, x.name from duly.schedule x where x.project_id = p.id offset 0) s
    cross join lateral (
        select x.schedule_id, x.state, x.parked_why, case when x.waiting_since is null then x.next_fire_at else x.look_at end as due_at
        from duly.schedule_turn x where x.schedule_id = s.id offset 0) t
    where p.account_id = p_account and (p_project is null or p.id = p_project) and p.deleted_at is null
      and (t.state = 'parked' or t.due_at < clock_timestamp() - make_interval(secs => p_late_seconds))
    order by t.schedule_id limit p_limit;
end $$;
