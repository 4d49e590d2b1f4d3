-- Records a reviewer's verdict on a compaction record of the thread. p_body begins with the number of the record and
-- the verdict.
CREATE FUNCTION compaction_store.record_verdict(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_number bigint, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz, OUT written_login text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    IF (p_body ~ ('^[{]"number":' || p_number || ',"verdict":"(good|bad|unsure)"[,}]')) IS NOT TRUE THEN
        RAISE EXCEPTION 'p_body must begin with the number of the record and the verdict good, bad or unsure'
            USING ERRCODE = 'CS008';
    END IF;
    IF EXISTS (
        SELECT FROM compaction_store.heads AS h
        WHERE h.thread_uid = p_thread_uid AND p_number NOT BETWEEN 1 AND h.last_number
    ) THEN
        RAISE EXCEPTION 'no compaction %', p_number USING ERRCODE = 'CS016';
    END IF;
    SELECT r.event_pos, r.written_at, r.written_login INTO event_pos, written_at, written_login
    FROM compaction_store.record_once(p_thread_uid, 'verdict', p_actor, p_salt, p_body) AS r;
END
$$;
