-- Tell idle workers that there is work: at most one NOTIFY for each time that a worker said it was idle. The hint is
-- sent at commit and may be lost; polling alone is correct.
create function duly.wake() returns void
language plpgsql
as $$
begin
    if (select i.last_value from duly.idle_until i) > extract(epoch from clock_timestamp()) * 1000 then
        perform setval('duly.idle_until', 0);
        perform pg_notify('duly.wake', '');
    end if;
end $$;

-- A worker found nothing and will look again in p_seconds: until a little later, whoever brings work wakes it.
create function duly.rest(p_seconds double precision) returns void
language plpgsql
as $$
declare
    v_until bigint := (extract(epoch from clock_timestamp()) * 1000 + p_seconds * 1000 + 1000)::bigint;
begin
    if (select i.last_value from duly.idle_until i) < v_until - 500 then
        perform setval('duly.idle_until', v_until);
    end if;
end $$;

-- A job was scheduled for p_first: wake the promoter if it would look later than that. One NOTIFY for the earliest, none for
-- those behind it.
create function duly.wake_promoter(p_first timestamptz) returns void
language plpgsql
as $$
declare
    v_first bigint := (extract(epoch from p_first) * 1000)::bigint;
begin
    if v_first < (select p.last_value from duly.promote_at p) then
        perform setval('duly.promote_at', greatest(v_first, 0));
        perform pg_notify('duly.wake', '');
    end if;
end $$;
