-- Returns whether Citus has distributed the tables. On a cluster, a function can only read the rows of its own thread.
CREATE FUNCTION compaction_store.is_distributed() RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_is_distributed boolean := false;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
        -- Use EXECUTE, because the table does not exist without Citus.
        EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid = $1)'
        INTO v_is_distributed USING 'compaction_store.threads'::regclass;
    END IF;
    RETURN v_is_distributed;
END
$$;
