-- Replaces a thread's metadata, and records an event with the names of the fields that changed. The event has no values,
-- because events stay when the thread is erased. If nothing changes, which is so for a retry, nothing is recorded.
CREATE FUNCTION compaction_store.set_metadata(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_metadata text, p_actor text DEFAULT NULL::text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
    v_both text;
    v_body text;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    PERFORM compaction_store.refuse_bad_document('metadata', p_metadata);
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    PERFORM compaction_store.refuse_erased(v_head.erased_pos);
    -- One text, so that equal names stay equal.
    SELECT compaction_store.parsable(format('[%s,%s]', t.metadata, p_metadata)) INTO v_both
    FROM compaction_store.threads AS t WHERE t.thread_uid = p_thread_uid;
    SELECT format(
        '{"set":%s,"removed":%s}', coalesce(json_agg(c.name) FILTER (WHERE NOT c.is_gone), '[]'),
        coalesce(json_agg(c.name) FILTER (WHERE c.is_gone), '[]')
    ) INTO v_body
    FROM (
        SELECT coalesce(n.key, o.key) AS name, n.key IS NULL AS is_gone
        FROM json_each(v_both::json -> 0) AS o FULL JOIN json_each(v_both::json -> 1) AS n ON n.key = o.key
        WHERE n.value::text IS DISTINCT FROM o.value::text
        ORDER BY coalesce(n.key, o.key) COLLATE "C"
    ) AS c
    HAVING count(*) > 0;
    IF v_body IS NOT NULL THEN
        PERFORM compaction_store.write_event(
            v_head, 'metadata', false, p_actor, compaction_store.new_salt(),
            -- Write NUL and lone surrogates as escapes again, for which parsable has put other texts.
            regexp_replace(v_body, ' [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(0000|d[89a-f][0-9a-f]{2})', E'\\\\u\\1', 'g')
        );
    END IF;
    UPDATE compaction_store.threads AS t SET metadata = p_metadata::json WHERE t.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the metadata was not stored' USING ERRCODE = 'CS010';
    END IF;
END
$$;
