-- Returns whether events of a kind belong to the log of a tenant, because they concern no single thread.
CREATE FUNCTION compaction_store.is_of_log(p_kind text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT p_kind IN ('verification', 'policy', 'rule', 'removal', 'shred', 'grant', 'ungrant', 'migration')
$$;
