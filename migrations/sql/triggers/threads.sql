CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON compaction_store.threads
    FOR EACH ROW EXECUTE FUNCTION compaction_store.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON compaction_store.threads
    FOR EACH STATEMENT EXECUTE FUNCTION compaction_store.refuse_change();
-- ENABLE ALWAYS, so that session_replication_role cannot disable the triggers.
ALTER TABLE compaction_store.threads ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE compaction_store.threads ENABLE ALWAYS TRIGGER refuse_truncate;
