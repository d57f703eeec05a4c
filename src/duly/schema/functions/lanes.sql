-- The lanes of jobs about to be enqueued, in the order given; null where there is none yet. Asked for each job, one by one:
-- a join may read all lanes.
create function duly.lanes_of(p_accounts integer[], p_projects integer[], p_queues text[], p_kinds text[], p_keys text[])
returns bigint[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    return array(
        select (select l.id from duly.lane l
                where l.concurrency_key = coalesce(g.key, '') and l.block_id = (
                    select b.id from duly.lane_block b
                    where b.account_id = g.account_id and b.project_id = g.project_id and b.queue = g.queue and b.kind = g.kind))
        from unnest(p_accounts, p_projects, p_queues, p_kinds, p_keys) with ordinality g (account_id, project_id, queue, kind, key, place)
        order by g.place);
end $$;

-- Make the lanes that are missing, and their blocks. One order for all, so that two batches with the same new lanes do not
-- lock each other out.
create function duly.make_lanes(p_accounts integer[], p_projects integer[], p_queues text[], p_kinds text[], p_keys text[])
returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    insert into duly.lane_block (account_id, project_id, queue, kind)
    select distinct g.account_id, g.project_id, g.queue, g.kind
    from unnest(p_accounts, p_projects, p_queues, p_kinds) g (account_id, project_id, queue, kind)
    where (select b.id from duly.lane_block b
           where b.account_id = g.account_id and b.project_id = g.project_id and b.queue = g.queue and b.kind = g.kind) is null
    order by 1, 2, 3, 4
    on conflict do nothing;

    insert into duly.lane (id, block_id, concurrency_key)
    select (n.block_id::bigint << 32) + nextval('duly.lane_number'), n.block_id, n.key
    from (
        select distinct b.id as block_id, coalesce(g.key, '') as key
        from unnest(p_accounts, p_projects, p_queues, p_kinds, p_keys) g (account_id, project_id, queue, kind, key)
        cross join lateral (   -- "offset 0": by key for each
            select b.id from duly.lane_block b
            where b.account_id = g.account_id and b.project_id = g.project_id and b.queue = g.queue and b.kind = g.kind offset 0) b
        where (select l.id from duly.lane l where l.block_id = b.id and l.concurrency_key = coalesce(g.key, '')) is null
        order by 1, 2) n
    on conflict do nothing;
end $$;
