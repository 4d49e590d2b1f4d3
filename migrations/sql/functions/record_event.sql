-- Records a hold, a release or a retention. written_body is the body as it was stored, which for a retention also says
-- whether it shortens an earlier one.
CREATE FUNCTION compaction_store.record_event(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_kind text, p_actor text, p_salt bytea, p_body text,
    OUT event_pos bigint, OUT written_at timestamptz, OUT written_login text, OUT written_body text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    IF (p_kind IN ('hold', 'release', 'retention')) IS NOT TRUE
        OR (p_kind = 'retention' AND compaction_store.retained_until(p_body) IS NULL)
    THEN
        RAISE EXCEPTION 'p_kind must be hold, release or retention, with a body that fits the kind'
            USING ERRCODE = 'CS008';
    END IF;
    IF p_kind = 'retention' THEN
        PERFORM compaction_store.refuse_bad_document('body', p_body);
        SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
        -- A retry returns the event that it wrote. It must not be compared with itself.
        IF NOT EXISTS (
            SELECT FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos <= v_head.last_pos AND e.kind = p_kind AND e.salt = p_salt
        ) THEN
            p_body := compaction_store.term_body(v_head, p_body);
        END IF;
    END IF;
    SELECT r.event_pos, r.written_at, r.written_login INTO event_pos, written_at, written_login
    FROM compaction_store.record_once(p_thread_uid, p_kind, p_actor, p_salt, p_body) AS r;
    SELECT e.body::text INTO written_body FROM compaction_store.events AS e
    WHERE e.thread_uid = p_thread_uid AND e.pos = event_pos;
END
$$;
