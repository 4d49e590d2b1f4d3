-- Makes the key of a thread made at a time, in the same shard as another thread. It tries new keys, about as many as
-- there are shards. Only on a cluster: on a single server fork uses new_thread_uid, because any key will do.
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
