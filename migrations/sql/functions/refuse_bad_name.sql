-- Raises an error for names that the client would refuse too. A thread_id that begins with "erased:" would look like
-- the stub of an erased thread.
CREATE FUNCTION compaction_store.refuse_bad_name(p_tenant text, p_thread_id text) RETURNS void
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
END
$$;
