-- With a sub-select, tenant() is called once for each statement and not once for each row.
ALTER TABLE compaction_store.compactions ENABLE ROW LEVEL SECURITY;
ALTER TABLE compaction_store.compactions FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON compaction_store.compactions
    USING (tenant = (SELECT compaction_store.tenant()))
    WITH CHECK (tenant = (SELECT compaction_store.tenant()));
