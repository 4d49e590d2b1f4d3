-- Returns whether events of a kind belong to the log of a tenant, because they concern no single thread, or NULL for a
-- kind that a later release may write.
CREATE FUNCTION compaction_store.is_of_log(p_kind text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN p_kind IN ('verification', 'policy', 'rule', 'removal', 'shred', 'grant', 'ungrant', 'migration') THEN true
        WHEN p_kind IN (
            'redaction', 'hold', 'release', 'retention', 'fork', 'origin', 'refusal', 'verdict', 'evaluation',
            'metadata', 'subject'
        ) THEN false
    END
$$;
