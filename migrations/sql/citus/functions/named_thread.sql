-- Returns the thread_uid of the thread that has a name, or NULL if there is none. This function exists only on a
-- cluster, where it reads the table of names on the node of its first argument; on a single server, find_thread finds
-- the name in the table of threads.
CREATE OR REPLACE FUNCTION compaction_store.named_thread(p_name_uid uuid, p_tenant text, p_thread_id text) RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_thread_uid uuid;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    SELECT n.thread_uid INTO v_thread_uid
    FROM compaction_store.names AS n
    WHERE n.name_uid = p_name_uid AND n.tenant = p_tenant AND n.thread_id = p_thread_id;
    RETURN v_thread_uid;
END
$$;
