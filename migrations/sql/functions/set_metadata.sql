CREATE FUNCTION compaction_store.set_metadata(p_thread_uid uuid, p_tenant text, p_thread_id text, p_metadata text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.refuse_bad_document('metadata', p_metadata);
    UPDATE compaction_store.threads AS t SET metadata = p_metadata::json
    WHERE t.thread_uid = p_thread_uid AND t.thread_id <> 'erased:' || t.thread_uid;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_erased(h.erased_pos) FROM compaction_store.heads AS h
        WHERE h.thread_uid = p_thread_uid;
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
END
$$;
