-- Records the compactions that a provider made by itself in messages that were loaded. p_records has the same form as
-- in commit_compactions. Records that were made from erased messages are refused, no matter when the messages were
-- erased. Returns false if another call has recorded this run before. A retry of that call has the salt of its first
-- record, and returns true.
CREATE FUNCTION compaction_store.observe(p_thread_uid uuid, p_tenant text, p_thread_id text, p_run_id uuid, p_records text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_ours boolean;
    v_last_number bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    -- Refuse all other outcomes, because the loader's role must not be able to change a view.
    IF EXISTS (
        SELECT FROM json_array_elements(p_records::json) AS r
        WHERE r.value #>> '{columns,outcome}' IS DISTINCT FROM 'observed'
    ) THEN
        RAISE EXCEPTION 'the outcome of each record must be observed' USING ERRCODE = 'CS008';
    END IF;
    SELECT h.last_number INTO v_last_number
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    SELECT bool_and(coalesce(c.salt = decode(p_records::json #>> '{0,salt}', 'hex'), false)) INTO v_ours
    FROM compaction_store.compactions AS c
    WHERE c.thread_uid = p_thread_uid AND c.run_id = p_run_id AND c.number <= v_last_number;
    IF v_ours IS NOT NULL THEN
        RETURN v_ours;
    END IF;
    PERFORM compaction_store.commit_compactions(p_thread_uid, p_tenant, p_thread_id, p_run_id, 0, NULL, p_records);
    RETURN true;
END
$$;
