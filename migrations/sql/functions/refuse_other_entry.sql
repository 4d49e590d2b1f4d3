-- Raises an error if a thread does not have the expected entry at a pos. p_seq is the last seq at that pos, if the
-- caller knows it. At pos 0 there is no entry to expect: on a cluster, a new thread has its rows before its first
-- append, and must be treated like a thread that does not exist.
CREATE FUNCTION compaction_store.refuse_other_entry(
    p_thread_uid uuid, p_pos bigint, p_seq bigint, p_expected bytea
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_actual bytea := CASE WHEN p_pos > 0 THEN compaction_store.entry_at(p_thread_uid, p_pos, p_seq) END;
BEGIN
    IF p_expected IS DISTINCT FROM v_actual THEN
        RAISE EXCEPTION 'expected entry % at pos % and found %', encode(p_expected, 'hex'), p_pos,
            coalesce(encode(v_actual, 'hex'), 'none')
            USING ERRCODE = 'CS017', DETAIL = coalesce(encode(v_actual, 'hex'), '');
    END IF;
END
$$;
