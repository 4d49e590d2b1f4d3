-- The tenant of this transaction, as the functions set it: for one transaction, because behind a pooler the connection
-- is shared. Without one it raises rather than finding nothing. Inlined into the policies, and so without a SET of its
-- own.
CREATE FUNCTION compaction_store.tenant() RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN pg_catalog.current_setting('compaction_store.tenant', true) <> ''
            THEN pg_catalog.current_setting('compaction_store.tenant', true)
        ELSE compaction_store.refuse_no_tenant()
    END
$$;
