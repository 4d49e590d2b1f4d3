-- Kinds of objects that the shipped schema does not have.
SELECT s.subject, 'there' FROM pg_catalog.pg_namespace AS n
CROSS JOIN LATERAL (
    SELECT pg_catalog.format('operator %s (%s, %s)', o.oprname, o.oprleft::regtype, o.oprright::regtype)
    FROM pg_catalog.pg_operator AS o WHERE o.oprnamespace = n.oid
    UNION ALL
    SELECT 'type ' || t.typname FROM pg_catalog.pg_type AS t
    WHERE t.typnamespace = n.oid AND t.typrelid = 0
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_type AS e WHERE e.typarray = t.oid AND e.typrelid <> 0)
    UNION ALL
    SELECT 'statistics ' || t.stxname FROM pg_catalog.pg_statistic_ext AS t
    LEFT JOIN pg_catalog.pg_class AS c ON c.oid = t.stxrelid
    WHERE n.oid IN (t.stxnamespace, c.relnamespace)
    UNION ALL
    SELECT 'operator class ' || o.opcname FROM pg_catalog.pg_opclass AS o WHERE o.opcnamespace = n.oid
    UNION ALL
    SELECT 'operator family ' || o.opfname FROM pg_catalog.pg_opfamily AS o WHERE o.opfnamespace = n.oid
    UNION ALL
    SELECT 'conversion ' || o.conname FROM pg_catalog.pg_conversion AS o WHERE o.connamespace = n.oid
    UNION ALL
    SELECT 'collation ' || o.collname FROM pg_catalog.pg_collation AS o WHERE o.collnamespace = n.oid
    UNION ALL
    SELECT 'text search configuration ' || o.cfgname FROM pg_catalog.pg_ts_config AS o
    WHERE o.cfgnamespace = n.oid
    UNION ALL
    SELECT 'text search dictionary ' || o.dictname FROM pg_catalog.pg_ts_dict AS o WHERE o.dictnamespace = n.oid
    UNION ALL
    SELECT 'text search parser ' || o.prsname FROM pg_catalog.pg_ts_parser AS o WHERE o.prsnamespace = n.oid
    UNION ALL
    SELECT 'text search template ' || o.tmplname FROM pg_catalog.pg_ts_template AS o WHERE o.tmplnamespace = n.oid
    UNION ALL
    SELECT 'extension ' || e.extname FROM pg_catalog.pg_extension AS e WHERE e.extnamespace = n.oid
    UNION ALL
    SELECT pg_catalog.format('default privileges of %s on kind %s',
        pg_catalog.pg_get_userbyid(d.defaclrole), d.defaclobjtype)
    FROM pg_catalog.pg_default_acl AS d
    WHERE d.defaclnamespace = n.oid
        OR d.defaclnamespace = 0 AND pg_catalog.pg_get_userbyid(d.defaclrole) = 'compaction_store_owner'
    UNION ALL
    -- A view or a SECURITY DEFINER function of the owner's role, in another schema, acts with that role's rights.
    SELECT pg_catalog.format('%s %s, which belongs to %s,', i.type, i.identity,
        pg_catalog.pg_get_userbyid(d.refobjid))
    FROM pg_catalog.pg_shdepend AS d
    JOIN pg_catalog.pg_database AS b ON b.oid = d.dbid AND b.datname = pg_catalog.current_database()
    CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid) AS i
    WHERE d.refclassid = 'pg_authid'::regclass AND d.deptype = 'o'
        AND pg_catalog.pg_get_userbyid(d.refobjid) = ANY (:ours)
        AND d.classid <> 'pg_default_acl'::regclass AND i.schema IS DISTINCT FROM n.nspname
        AND NOT (d.classid = 'pg_namespace'::regclass AND d.objid = n.oid)
    UNION ALL
    SELECT 'table pg_catalog.pg_dist_partition without Citus'
    WHERE pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'citus')
) AS s (subject)
WHERE n.nspname = 'compaction_store';
