-- Makes the thread_uid of a new thread in the same shard as another thread. It makes random keys until one fits; this
-- takes about as many attempts as there are shards. This function exists only on a cluster; on a single server, fork
-- calls new_thread_uid, because any thread_uid will do.
CREATE OR REPLACE FUNCTION compaction_store.new_uid_beside(p_thread_uid uuid, p_born_at timestamptz) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_new_uid uuid;
BEGIN
    LOOP
        v_new_uid := compaction_store.new_thread_uid(p_born_at);
        EXIT WHEN compaction_store.is_beside(p_thread_uid, v_new_uid);
    END LOOP;
    RETURN v_new_uid;
END
$$;
