-- Makes the thread_uid of a thread that is created at a time: a UUID of version 7, which begins with the time in
-- milliseconds. Young threads get most appends. Their thread_uids are close to each other, so that their index entries
-- are on a few pages.
CREATE FUNCTION compaction_store.new_thread_uid(p_born_at timestamptz) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_key bytea := overlay(
        uuid_send(gen_random_uuid()) PLACING substring(int8send(compaction_store.microseconds(p_born_at) / 1000) FROM 3) FROM 1
    );
BEGIN
    -- Change the version, which is in the high four bits of byte 6, from 4 to 7.
    RETURN encode(set_byte(v_key, 6, get_byte(v_key, 6) & 15 | 112), 'hex')::uuid;
END
$$;
