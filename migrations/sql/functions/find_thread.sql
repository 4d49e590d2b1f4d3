-- Returns the thread_uid of the thread that has a name now, or NULL if there is none. An erased thread is found by the
-- name of its stub. Other functions call this if their caller does not know the thread_uid.
CREATE FUNCTION compaction_store.find_thread(p_tenant text, p_thread_id text) RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_thread_uid uuid;
BEGIN
    SELECT t.thread_uid INTO v_thread_uid
    FROM compaction_store.threads AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
    RETURN v_thread_uid;
END
$$;
