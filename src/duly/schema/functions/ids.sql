-- The smallest UUIDv7 of a moment: where a day's partition begins.
create function duly.uuid7_floor(p_at timestamptz) returns uuid
language sql immutable parallel safe
return (lpad(to_hex(floor(extract(epoch from p_at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- A new UUIDv7 (RFC 9562): a random UUIDv4 whose first 48 bits become the milliseconds and whose version nibble becomes 7.
create function duly.uuid7() returns uuid
language sql volatile parallel safe
return encode(
    set_bit(set_bit(
        overlay(uuid_send(gen_random_uuid())
                placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                from 1 for 6),
        52, 1), 53, 1),
    'hex')::uuid;
