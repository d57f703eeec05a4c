-- Segments group the rows of ready and lease in time, so that no claim walks the dead entries of all the jobs before it.
-- advance: open the next number. move: carry survivors of a closed segment over. retire: look there no more.

-- The live segments of a line ('ready' or 'lease'): closed ones that may still hold rows, oldest first, and the number from which
-- all are live. A caller may keep the answer for a while: an old list is a little longer than it need be, never wrong.
create function duly.live_segments(p_line text, out closed bigint[], out upwards_from bigint)
language plpgsql set enable_bitmapscan = off set jit = off
as $$
declare
    v_floor   bigint := case p_line when 'ready' then (select f.last_value from duly.ready_floor f) else (select f.last_value from duly.lease_floor f) end;
    v_current bigint := (select c.last_value from duly.segment_current c);
begin
    closed := array(
        select k.segment from duly.kept k where k.line = p_line and k.segment < v_floor
        union all
        select number from generate_series(v_floor, v_current - 1) number
        where not exists (select from duly.retired r where r.line = p_line and r.segment = number)
        order by 1);
    upwards_from := v_current;
end $$;

-- Open the next segment. Returns its number.
create function duly.advance() returns bigint
language sql
return nextval('duly.segment_current');

-- p_rows rows came or went: open the next segment about every p_every rows, by chance, so that no counter is kept.
-- With more than p_grow_from live segments they grow, so that the number of those that a backlog makes follows its square root.
create function duly.advance_after(p_rows integer, p_every integer, p_grow_from double precision) returns void
language plpgsql set enable_bitmapscan = off set jit = off
as $$
declare
    v_floor bigint := (select f.last_value from duly.ready_floor f);
    v_live  bigint := (select c.last_value from duly.segment_current c) - v_floor
        - (select count(*) from duly.retired r where r.line = 'ready' and r.segment >= v_floor)
        + (select count(*) from duly.kept k where k.line = 'ready');
begin
    if p_rows > 0 and random() * p_every * greatest(1.0, v_live / p_grow_from) < p_rows then
        perform duly.advance();
    end if;
end $$;

-- Which transactions could still bring rows into segments closed before this call: those that hold ROW EXCLUSIVE on the
-- line's table. A statement takes that lock before it reads the current number. Noted later, the set only grows.
create function duly.segment_holders(p_line text) returns text[]
language sql
return array(
    select l.virtualtransaction from pg_locks l
    where l.locktype = 'relation' and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.relation = ('duly.' || p_line)::regclass and l.mode = 'RowExclusiveLock' and l.granted
      and l.pid is distinct from pg_backend_pid());

-- Does a prepared transaction (two-phase commit) that a restart of the server has brought back hold the line's table? It goes under
-- another name then, so that nobody can say whether it was noted: nothing is retired until it has ended.
create function duly.has_recovered(p_line text) returns boolean
language sql
return exists (
    select from pg_locks l
    where l.locktype = 'relation' and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.relation = ('duly.' || p_line)::regclass and l.mode = 'RowExclusiveLock' and l.virtualtransaction like '-1/%');

-- How many rows a segment has, counted no further than p_at_most.
create function duly.segment_rows(p_line text, p_segment bigint, p_at_most integer) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    if p_line = 'ready' then
        return (select count(*) from (select from duly.ready r where r.segment = p_segment limit p_at_most) seen);
    end if;
    return (select count(*) from (select from duly.lease l where l.segment = p_segment limit p_at_most) seen);
end $$;

-- Carry up to p_limit rows of a closed segment over to the current one; order keys stay. Returns how many; rows that
-- somebody holds are passed by.
create function duly.move_segment(p_line text, p_segment bigint, p_limit integer) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_moved integer;
begin
    if p_line = 'ready' then
        update duly.ready r set segment = (select c.last_value from duly.segment_current c)
        where r.ctid = any (array(
            select s.ctid from duly.ready s where s.segment = p_segment
            order by s.account_id, s.lane_id, s.priority, s.run_at, s.job_id limit p_limit for update skip locked));
    else
        update duly.lease l set segment = (select c.last_value from duly.segment_current c)
        where l.ctid = any (array(
            select s.ctid from duly.lease s where s.segment = p_segment
            order by s.account_id, s.lane_id limit p_limit for update skip locked));
    end if;
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- Retire a closed segment: true if it is retired now. It must have no row, and none of the transactions noted when it was
-- seen closed (p_holders) may still be there; that is asked first, so that whatever they committed is seen by the look for rows.
create function duly.retire_segment(p_line text, p_segment bigint, p_holders text[]) returns boolean
language plpgsql
as $$
begin
    if p_segment >= (select c.last_value from duly.segment_current c) then
        return false;
    end if;
    if duly.segment_holders(p_line) && p_holders or duly.has_recovered(p_line) then
        return false;
    end if;
    if duly.segment_rows(p_line, p_segment, 1) > 0 then
        return false;
    end if;
    insert into duly.retired (line, segment) values (p_line, p_segment) on conflict do nothing;
    delete from duly.kept k where k.line = p_line and k.segment = p_segment;
    return true;
end $$;

-- Raise the line's floor over what is retired or kept just above it, and forget the retired below. A floor never falls. Live segments
-- that lie 32 numbers or more behind are kept from now on: once that is committed, the next call raises the floor over them.
create function duly.raise_floor(p_line text) returns bigint
language plpgsql
as $$
declare
    v_sequence regclass := ('duly.' || p_line || '_floor')::regclass;
    v_current  bigint := (select c.last_value from duly.segment_current c);
    v_before   bigint := pg_sequence_last_value(v_sequence);
    v_floor    bigint;
begin
    if not pg_try_advisory_xact_lock(hashtext('duly.raise_floor'), hashtext(p_line)) then
        return null;
    end if;
    v_floor := coalesce((
        select number from generate_series(v_before, v_current) number
        where not exists (select from duly.retired r where r.line = p_line and r.segment = number)
          and not exists (select from duly.kept k where k.line = p_line and k.segment = number)
        order by number limit 1), v_current);
    if v_floor > v_before then
        perform setval(v_sequence, v_floor);
        delete from duly.retired r where r.line = p_line and r.segment < v_floor;
    end if;
    insert into duly.kept (line, segment)
    select p_line, number from generate_series(v_floor, v_current - 32) number
    where not exists (select from duly.retired r where r.line = p_line and r.segment = number)
    on conflict do nothing;
    return v_floor;
end $$;
