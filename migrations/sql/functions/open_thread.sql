-- Inserts the rows of a thread at its first append and returns its thread_uid. Of two first appends at the same time,
-- one waits here for the other and gets its thread_uid. The thread's creation time is also the time of its first entry,
-- so the chain covers it. On a cluster, the caller passes the thread_uid, which was made with the name, and the time in
-- it. p_may_be_log says that the thread may be the log of the tenant.
CREATE FUNCTION compaction_store.open_thread(
    p_tenant text, p_thread_id text, p_thread_uid uuid DEFAULT NULL::uuid,
    p_born_at timestamptz DEFAULT NULL::timestamp with time zone, p_may_be_log boolean DEFAULT false,
    p_subject text DEFAULT NULL::text
) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := coalesce(p_born_at, clock_timestamp());
    v_thread_uid uuid := coalesce(p_thread_uid, compaction_store.new_thread_uid(v_now));
    v_salt bytea := compaction_store.new_salt();
    v_commitment bytea := compaction_store.name_commitment(v_salt, p_thread_id);
BEGIN
    PERFORM compaction_store.refuse_bad_name(p_tenant, p_thread_id, p_may_be_log);
    INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, salt, commitment, created_at)
    VALUES (v_thread_uid, p_tenant, p_thread_id, v_salt, v_commitment, v_now)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        IF p_thread_uid IS NOT NULL THEN
            RAISE EXCEPTION 'the thread_uid is taken' USING ERRCODE = 'CS020';
        END IF;
        RETURN compaction_store.find_thread(p_tenant, p_thread_id);
    END IF;
    INSERT INTO compaction_store.heads (thread_uid, tenant, last_at, active_at, head, is_log, subject)
    VALUES (
        v_thread_uid, p_tenant, v_now, v_now, compaction_store.genesis(v_thread_uid, p_tenant, v_commitment),
        p_thread_id = 'compaction-store:log', p_subject
    );
    RETURN v_thread_uid;
END
$$;
