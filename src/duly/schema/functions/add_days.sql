-- Make the day partitions of the facts from yesterday to p_ahead days from now. Repeatable; serialized by a lock.
-- Made alone and then attached: ATTACH takes SHARE UPDATE EXCLUSIVE on the parent, so neither claims nor pg_dump wait.
-- There is no default partition, because attaching beside one would lock it against everybody.
-- Runs as its owner, so that a run-time role needs no right to create tables.
create function duly.add_days(p_ahead integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_today date := (now() at time zone 'utc')::date;
    v_day   date;
    v_fact  text;
    v_name  text;
    v_made  integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('duly.add_days'));
    for v_day in select v_today + n from generate_series(-1, p_ahead) n loop
        foreach v_fact in array array['job', 'job_tag', 'attempt', 'outcome'] loop
            v_name := v_fact || to_char(v_day, '_YYYYMMDD');
            continue when to_regclass('duly.' || v_name) is not null;
            execute format('create table duly.%I (like duly.%I including defaults including constraints)', v_name, v_fact);
            execute format(
                'alter table duly.%I attach partition duly.%I for values from (%L) to (%L)', v_fact, v_name,
                duly.uuid7_floor(v_day::timestamp at time zone 'utc'),
                duly.uuid7_floor((v_day + 1)::timestamp at time zone 'utc'));
            v_made := v_made + 1;
        end loop;
    end loop;
    return v_made;
end $$;
