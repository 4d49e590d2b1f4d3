-- The sub-select makes it one call a statement instead of one a row.
ALTER TABLE compaction_store.messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE compaction_store.messages FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON compaction_store.messages
    USING (tenant = (SELECT compaction_store.tenant()))
    WITH CHECK (tenant = (SELECT compaction_store.tenant()));
