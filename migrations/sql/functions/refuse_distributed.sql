-- Raises an error if Citus has distributed the tables, for what needs two threads or a local table in one call: a function
-- there reads only the rows of the thread that it was called for.
CREATE FUNCTION compaction_store.refuse_distributed(p_error text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_is_distributed boolean := false;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
        -- EXECUTE, because the table is not there without Citus.
        EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid = $1)'
        INTO v_is_distributed USING 'compaction_store.threads'::regclass;
    END IF;
    IF v_is_distributed THEN
        RAISE EXCEPTION '%', p_error USING ERRCODE = 'CS015';
    END IF;
END
$$;
