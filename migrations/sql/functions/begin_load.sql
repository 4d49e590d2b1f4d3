-- Locks a thread for the loader until its transaction ends, and tells where its chain stands.
CREATE FUNCTION compaction_store.begin_load(p_thread_uid uuid, p_tenant text, p_thread_id text)
RETURNS TABLE (last_seq bigint, last_pos bigint, head bytea, last_at timestamptz, now timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.open_thread(p_thread_uid, p_tenant, p_thread_id);
    RETURN QUERY
        SELECT h.last_seq, h.last_pos, h.head, nullif(h.last_at, '-infinity'), clock_timestamp()
        FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
END
$$;
