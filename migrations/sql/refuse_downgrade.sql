-- Runs before all tables are dropped. Locks them first, so that nothing is appended between the check and the drop. Their
-- policies would hide other tenants' rows from the check; they are dropped first, as the tables will be.
DO $$
DECLARE
    v_table text;
    v_found boolean;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['threads', 'heads', 'messages', 'compactions', 'events'] LOOP
        EXECUTE format('ALTER TABLE compaction_store.%I DISABLE ROW LEVEL SECURITY', v_table);
        EXECUTE format('SELECT EXISTS (SELECT FROM compaction_store.%I)', v_table) INTO v_found;
        IF v_found THEN
            RAISE EXCEPTION 'this would delete messages or records; if you mean it: alembic -x delete-everything=yes'
                USING ERRCODE = 'CS006';
        END IF;
    END LOOP;
END
$$;
