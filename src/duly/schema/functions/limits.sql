-- How many jobs may run at once: of an account, of a queue, of a concurrency key. Counted from the leases themselves, so a slot is
-- free the moment its lease is gone, whatever became of the worker, and there is no counter that could leak. A count costs
-- what the limit allows, never what waits. Whoever claims under a limit holds a lock on the limited row until its leases
-- are committed, so no two count the same room; one who finds it locked leaves the lane to the other.
-- These functions run inside claim, under the settings that pin its plans: to set them for each call costs more than the call.

-- How many jobs of an account run in a range of lanes, counted no further than p_at_most. The current number is read after the
-- statement's snapshot was taken: a lease that was carried over meanwhile is still found.
create function duly.running(p_account integer, p_from bigint, p_to bigint, p_at_most integer) returns integer
language plpgsql
as $$
declare
    v_closed  bigint[];
    v_upwards bigint;
begin
    select s.closed, s.upwards_from into v_closed, v_upwards from duly.live_segments('lease') s;
    return (
        select count(*) from (
            select from unnest(v_closed || array(select generate_series(v_upwards, (select c.last_value from duly.segment_current c)))) live (segment)
            cross join lateral (
                select from duly.lease l
                where l.segment = live.segment and l.account_id = p_account and l.lane_id between p_from and p_to
                limit p_at_most) one
            limit p_at_most) counted);
end $$;

-- The same for a queue of a project: its blocks, one for each kind.
create function duly.running_in_queue(p_account integer, p_project integer, p_queue text, p_at_most integer) returns integer
language plpgsql
as $$
declare
    v_block integer;
    v_count integer := 0;
begin
    for v_block in
        select b.id from duly.lane_block b where b.account_id = p_account and b.project_id = p_project and b.queue = p_queue
    loop
        v_count := v_count + duly.running(p_account, v_block::bigint << 32, (v_block::bigint << 32) + 4294967295, p_at_most - v_count);
        exit when v_count >= p_at_most;
    end loop;
    return v_count;
end $$;

-- The same for a concurrency key of a queue: its lanes, one for each kind.
create function duly.running_with_key(p_account integer, p_project integer, p_queue text, p_key text, p_at_most integer) returns integer
language plpgsql
as $$
declare
    v_lane  bigint;
    v_count integer := 0;
begin
    for v_lane in
        select l.id
        from duly.lane_block b
        cross join lateral (select l.id from duly.lane l where l.block_id = b.id and l.concurrency_key = p_key offset 0) l
        where b.account_id = p_account and b.project_id = p_project and b.queue = p_queue
    loop
        v_count := v_count + duly.running(p_account, v_lane, v_lane, p_at_most - v_count);
        exit when v_count >= p_at_most;
    end loop;
    return v_count;
end $$;

-- Whether a worker may claim from the lanes of a block, as far as a look without locks tells. closed: from none of them (the worker does not
-- serve it; its queue is paused, full or out of tokens, and in wait_seconds it has some). Otherwise key_limit says how many
-- may run with one concurrency key, null: as many as like.
create function duly.look_at_block(
    p_account integer, p_block integer, p_kinds text[], p_queues text[],
    out closed boolean, out wait_seconds double precision, out key_limit integer, out project_id integer, out queue text)
language plpgsql stable
as $$
declare
    v_block duly.lane_block;
    v_queue duly.queue;
begin
    closed := true;
    select * into v_block from duly.lane_block b where b.id = p_block;
    if not v_block.kind = any (p_kinds) or not (p_queues is null or v_block.queue = any (p_queues)) then
        return;
    end if;
    select * into v_queue from duly.queue q where q.project_id = v_block.project_id and q.name = v_block.queue;
    if not found then
        closed := false;
        return;
    end if;
    if v_queue.paused then
        return;
    end if;
    if v_queue.concurrency is not null then   -- nested: SQL may evaluate both sides of an "and"
        if duly.running_in_queue(p_account, v_block.project_id, v_block.queue, v_queue.concurrency) >= v_queue.concurrency then
            return;
        end if;
    end if;
    if v_queue.rate_limit is not null then
        wait_seconds := nullif(duly.rate_wait(v_queue.project_id, v_queue.name, v_queue.rate_limit, v_queue.rate_seconds), 0);
        if wait_seconds is not null then
            return;
        end if;
    end if;
    closed := false;
    key_limit := v_queue.key_concurrency;
    project_id := v_block.project_id;
    queue := v_block.queue;
end $$;

-- The same for the lane of a concurrency key. p_leased: live_segments('lease'), a moment old: a lease that was carried over since is not
-- seen, and room decides.
create function duly.key_is_full(
    p_account integer, p_project integer, p_queue text, p_lane bigint, p_limit integer, p_leased bigint[]) returns boolean
language plpgsql stable
as $$
declare
    v_key text := (select l.concurrency_key from duly.lane l where l.id = p_lane);
begin
    if v_key = '' then
        return false;
    end if;
    return p_limit = (
        select count(*) from (
            select from duly.lane_block b
            cross join lateral (select l.id from duly.lane l where l.block_id = b.id and l.concurrency_key = v_key offset 0) its
            cross join unnest(p_leased) live (segment)
            cross join lateral (
                select from duly.lease x
                where x.segment = live.segment and x.account_id = p_account and x.lane_id = its.id
                limit p_limit) one
            where b.account_id = p_account and b.project_id = p_project and b.queue = p_queue
            limit p_limit) counted);
end $$;

-- Where leases stand.
create function duly.leased() returns bigint[]
language plpgsql stable
as $$
begin
    return (
        select s.closed || array(select generate_series(s.upwards_from, (select c.last_value from duly.segment_current c)))
        from duly.live_segments('lease') s);
end $$;

-- The same for an account.
create function duly.account_is_full(p_account integer) returns boolean
language plpgsql stable
as $$
declare
    v_limit integer := (select a.concurrency from duly.account a where a.id = p_account);
begin
    if v_limit is null then
        return false;
    end if;
    return duly.running(p_account, 0, 9223372036854775807, v_limit) >= v_limit;
end $$;

-- What applies to a lane, now and until the claim's transaction has ended: free: nothing · limited: ask for room · account, queue: that is
-- being changed (see settings.sql), pass it by. First the locks are shared, then is read what they guard.
create function duly.limits_of(p_account integer, p_lane bigint) returns text
language plpgsql
as $$
declare
    v_block duly.lane_block;
begin
    select * into v_block from duly.lane_block b where b.id = p_lane >> 32;
    if not pg_try_advisory_xact_lock_shared(hashtext('duly.account'), p_account) then
        return 'account';
    end if;
    if not pg_try_advisory_xact_lock_shared(hashtext('duly.queue'), hashtext(v_block.project_id || v_block.queue)) then
        return 'queue';
    end if;
    if exists (select from duly.account a where a.id = p_account and a.concurrency is not null)
            or exists (select from duly.queue q where q.project_id = v_block.project_id and q.name = v_block.queue) then
        return 'limited';
    end if;
    return 'free';
end $$;

-- How many of p_wanted jobs a claim may take from a lane, exactly: the limits that apply are locked first, then counted. Null: a rival
-- holds the lock. p_accounts, p_lanes and p_counts say what this claim has picked already and not leased yet. rate_limit and the
-- rest are those of a queue with a rate: spend what was picked.
create function duly.room(
    p_account integer, p_lane bigint, p_wanted integer, p_accounts integer[], p_lanes bigint[], p_counts integer[],
    out room integer, out rate_limit integer, out rate_seconds double precision, out project_id integer, out queue text)
language plpgsql
as $$
declare
    v_room  integer := p_wanted;
    v_limit integer;
    v_block duly.lane_block;
    v_queue duly.queue;
    v_key   text;
begin
    if (select a.concurrency from duly.account a where a.id = p_account) is not null then
        select a.concurrency into v_limit from duly.account a where a.id = p_account for no key update skip locked;
        if not found then
            return;
        end if;
        v_room := least(v_room, v_limit - duly.running(p_account, 0, 9223372036854775807, v_limit) - coalesce((
            select sum(p.n) from unnest(p_accounts, p_counts) p (account_id, n) where p.account_id = p_account), 0));
    end if;

    select * into v_block from duly.lane_block b where b.id = p_lane >> 32;
    select * into v_queue from duly.queue q where q.project_id = v_block.project_id and q.name = v_block.queue;
    if not found then
        room := greatest(0, v_room);
        return;
    end if;
    if coalesce(v_queue.concurrency, v_queue.key_concurrency, v_queue.rate_limit) is not null then
        select * into v_queue from duly.queue q
        where q.project_id = v_block.project_id and q.name = v_block.queue for no key update skip locked;
        if not found then
            return;
        end if;
    end if;
    room := 0;
    if v_queue.paused then
        return;
    end if;
    if v_queue.concurrency is not null then
        v_room := least(v_room, v_queue.concurrency
            - duly.running_in_queue(p_account, v_block.project_id, v_block.queue, v_queue.concurrency) - coalesce((
                select sum(p.n) from unnest(p_lanes, p_counts) p (lane_id, n) where (
                    select b.queue = v_block.queue and b.project_id = v_block.project_id from duly.lane_block b where b.id = p.lane_id >> 32)), 0));
    end if;
    if v_queue.key_concurrency is not null then
        v_key := (select l.concurrency_key from duly.lane l where l.id = p_lane);
        if v_key <> '' then
            v_room := least(v_room, v_queue.key_concurrency
                - duly.running_with_key(p_account, v_block.project_id, v_block.queue, v_key, v_queue.key_concurrency) - coalesce((
                    select sum(p.n) from unnest(p_lanes, p_counts) p (lane_id, n) where (
                        select b.queue = v_block.queue and b.project_id = v_block.project_id from duly.lane_block b where b.id = p.lane_id >> 32)
                      and (select l.concurrency_key = v_key from duly.lane l where l.id = p.lane_id)), 0));
        end if;
    end if;
    if v_queue.rate_limit is not null then
        v_room := least(v_room, duly.rate_tokens(v_queue.project_id, v_queue.name, v_queue.rate_limit, v_queue.rate_seconds));
        rate_limit := v_queue.rate_limit;
        rate_seconds := v_queue.rate_seconds;
        project_id := v_queue.project_id;
        queue := v_queue.name;
    end if;
    room := greatest(0, v_room);
end $$;
