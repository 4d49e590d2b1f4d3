-- Returns whether a thread_uid fits a thread's creation time: it must be a UUID of version 7 that begins with that
-- millisecond.
CREATE FUNCTION compaction_store.born_in(p_thread_uid uuid, p_born_at timestamptz) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.substring(pg_catalog.uuid_send(p_thread_uid), 1, 6)
        = pg_catalog.substring(pg_catalog.int8send(compaction_store.microseconds(p_born_at) / 1000), 3)
        AND pg_catalog.get_byte(pg_catalog.uuid_send(p_thread_uid), 6) / 16 = 7
        AND pg_catalog.get_byte(pg_catalog.uuid_send(p_thread_uid), 8) / 64 = 2
$$;
