CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON compaction_store.messages
    FOR EACH ROW EXECUTE FUNCTION compaction_store.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON compaction_store.messages
    FOR EACH STATEMENT EXECUTE FUNCTION compaction_store.refuse_change();
-- ENABLE ALWAYS, so that session_replication_role cannot disable the triggers.
ALTER TABLE compaction_store.messages ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE compaction_store.messages ENABLE ALWAYS TRIGGER refuse_truncate;
