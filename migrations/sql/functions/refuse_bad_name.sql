-- Raises an error for names that the client would refuse too. A thread_id that begins with "erased:" would look like
-- the stub of an erased thread. Names that begin with "compaction-store:" are reserved; the only one in use is that of
-- the log of a tenant, which p_may_be_log allows.
CREATE FUNCTION compaction_store.refuse_bad_name(
    p_tenant text, p_thread_id text, p_may_be_log boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF (octet_length(p_tenant) BETWEEN 1 AND 255) IS NOT TRUE THEN
        RAISE EXCEPTION 'a tenant must be 1 to 255 bytes of text, not %', octet_length(p_tenant)
            USING ERRCODE = 'CS018';
    END IF;
    IF (octet_length(p_thread_id) BETWEEN 1 AND 255) IS NOT TRUE THEN
        RAISE EXCEPTION 'a thread_id must be 1 to 255 bytes of text, not %', octet_length(p_thread_id)
            USING ERRCODE = 'CS018';
    END IF;
    IF starts_with(p_thread_id, 'erased:') THEN
        RAISE EXCEPTION 'a thread_id must not begin with "erased:"' USING ERRCODE = 'CS018';
    END IF;
    IF p_may_be_log AND p_thread_id = 'compaction-store:log' THEN
        RETURN;
    END IF;
    IF starts_with(p_thread_id, 'compaction-store:') THEN
        RAISE EXCEPTION 'a thread_id must not begin with "compaction-store:"' USING ERRCODE = 'CS018';
    END IF;
    IF p_tenant = 'compaction-store' THEN
        RAISE EXCEPTION 'a tenant must not be "compaction-store", which is reserved' USING ERRCODE = 'CS018';
    END IF;
END
$$;
