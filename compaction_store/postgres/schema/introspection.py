"""Reads the schema of a database as facts. A fact is a subject and its description, both as text.

The queries qualify every name with its schema, so that no object in the database can replace a catalog table. They need
no privileges. `schema_check` has the expected facts. `partitions` reads the facts about partitions, which these queries
leave out. The file is long because most of it is queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy.pool import PoolProxiedConnection as Connection

from compaction_store.models.roles import GROUPS
from compaction_store.postgres import queries, tables
from compaction_store.postgres.schema import partitions, role_members
from compaction_store.postgres.schema.layout import CLUSTER, SERVER, Layout
from compaction_store.postgres.schema.role_members import Member

# The queries in _STATEMENTS have the parameter `ours`, the schema's roles, and return subjects and descriptions. n is
# always the namespace compaction_store. Flags in pg_class decide whether Postgres uses the triggers, indexes and checks
# of a table at all, so the queries compare the flags with the objects that exist. The login that migrated owns the
# schema and Alembic's table. It may be any member of the role that owns the other tables.
_TABLES = """
    SELECT 'table ' || c.relname, pg_catalog.concat_ws(', ',
        CASE WHEN c.relkind IN ('r', 'p') THEN 'table' ELSE 'of kind ' || c.relkind::text END,
        CASE c.relpersistence WHEN 'p' THEN NULL ELSE 'persistence ' || c.relpersistence::text END,
        CASE WHEN c.relrowsecurity THEN 'row security' END, CASE WHEN c.relforcerowsecurity THEN 'forced' END,
        CASE WHEN NOT c.relhastriggers AND EXISTS (SELECT FROM pg_catalog.pg_trigger AS g WHERE g.tgrelid = c.oid)
            THEN 'triggers not looked for' END,
        CASE WHEN NOT c.relhasindex AND EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid)
            THEN 'indexes not looked for' END,
        CASE WHEN c.relkind IN ('r', 'p') AND c.relchecks <> (
            SELECT count(*) FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = c.oid AND k.contype = 'c'
        ) THEN 'checks not looked for' END,
        CASE WHEN NOT c.relispopulated THEN 'not populated' END,
        CASE WHEN c.reloftype <> 0 THEN 'of a type' END,
        CASE WHEN c.relkind = 'r' AND m.amname <> 'heap' THEN 'kept by ' || m.amname END)
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_am AS m ON m.oid = c.relam
    WHERE n.nspname = 'compaction_store' AND c.relkind NOT IN ('i', 'I', 't') AND NOT c.relispartition
    UNION ALL
    SELECT 'owner of ' || o.name, pg_catalog.pg_get_userbyid(
        CASE WHEN pg_catalog.pg_has_role(o.owner, t.relowner, 'MEMBER') THEN t.relowner ELSE o.owner END)::text
    FROM (
        SELECT 'the schema' AS name, n.nspowner AS owner
        FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'compaction_store'
        UNION ALL
        SELECT 'table alembic_version', c.relowner
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'compaction_store' AND c.relname = 'alembic_version'
    ) AS o
    JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'compaction_store'
    JOIN pg_catalog.pg_class AS t ON t.relnamespace = n.oid AND t.relname = 'messages'
    UNION ALL
    SELECT 'owner of table ' || c.relname, pg_catalog.pg_get_userbyid(c.relowner)::text
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relkind NOT IN ('i', 'I', 't') AND c.relname <> 'alembic_version'
        AND NOT c.relispartition
"""
_COLUMNS = """
    SELECT pg_catalog.format('column %%s.%%s', c.relname, a.attname), pg_catalog.concat_ws(' ',
        pg_catalog.format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attcollation NOT IN (0, t.typcollation) THEN 'collate ' || l.collname END,
        CASE WHEN a.attnotnull THEN 'not null' END,
        CASE WHEN a.attgenerated <> '' THEN 'generated as' WHEN a.attidentity <> '' THEN 'identity'
            WHEN d.adbin IS NOT NULL THEN 'default' END,
        pg_catalog.pg_get_expr(d.adbin, d.adrelid),
        CASE WHEN a.atthasdef <> (d.adbin IS NOT NULL) THEN 'not looked for' END)
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
    LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = a.attcollation
    LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE n.nspname = 'compaction_store' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND a.attnum > 0 AND NOT a.attisdropped
"""
_VIEWS = """
    SELECT 'definition of view ' || c.relname,
        coalesce(pg_catalog.array_to_string(c.reloptions, ', '), 'no options') || '; '
            || pg_catalog.pg_get_viewdef(c.oid)
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relkind = 'v'
"""
# NOT NULL is part of the fact about the column, so it is left out here. Only Postgres 18 lists it as a constraint.
_CONSTRAINTS = """
    SELECT pg_catalog.format('constraint %%s.%%s', c.relname, k.conname), pg_catalog.concat_ws(', ',
        CASE k.contype WHEN 'c' THEN 'check ' || pg_catalog.pg_get_expr(k.conbin, k.conrelid)
            ELSE pg_catalog.pg_get_constraintdef(k.oid) END,
        CASE WHEN NOT k.convalidated THEN 'not valid' END,
        CASE WHEN pg_catalog.to_jsonb(k) ->> 'conenforced' = 'false' THEN 'not enforced' END,
        CASE WHEN k.contype = 'p' AND NOT (i.indisvalid AND i.indisready AND i.indislive AND i.indisunique
            AND i.indisprimary AND i.indimmediate) THEN 'invalid' END)
    FROM pg_catalog.pg_constraint AS k
    JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_index AS i ON i.indexrelid = k.conindid
    WHERE n.nspname = 'compaction_store' AND k.contype <> 'n' AND NOT c.relispartition
"""
# Storage parameters are left out of the definitions. A plain index, of an administrator for example, changes only the
# speed of an answer. An index is not plain if a write may run foreign code through it or may leave it out: if it is
# unique, has an expression or a condition, uses an operator class or another object that is not part of Postgres, or is
# not kept up to date. `schema_check` also compares the plain ones that are shipped, because views read them.
_INDEXES = """
    SELECT CASE WHEN i.indisunique OR i.indpred IS NOT NULL OR s.flags <> '' THEN '' ELSE 'plain ' END
            || 'index ' || x.relname,
        pg_catalog.regexp_replace(pg_catalog.replace(
            pg_catalog.pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON '), ' WITH \\([^)]*\\)', '') || s.flags
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
    JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        SELECT pg_catalog.concat(
            CASE WHEN i.indexprs IS NOT NULL THEN ', with an expression' END,
            -- pg_depend does not list Postgres's own objects.
            CASE WHEN EXISTS (
                SELECT FROM pg_catalog.pg_depend AS d
                WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = x.oid AND d.refclassid IN (
                    'pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass,
                    'pg_catalog.pg_opclass'::regclass, 'pg_catalog.pg_type'::regclass,
                    'pg_catalog.pg_collation'::regclass)
            ) THEN ', with what is not part of Postgres' END,
            CASE WHEN NOT (i.indisvalid AND i.indisready AND i.indislive AND i.indimmediate) THEN ', invalid' END
        ) AS flags
    ) AS s
    WHERE n.nspname = 'compaction_store' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
"""
# This leaves out Citus's own trigger, and the internal triggers of foreign keys, because a user's tables may have
# foreign keys to these tables.
_TRIGGERS = """
    SELECT pg_catalog.format('trigger %%s.%%s', c.relname, g.tgname), pg_catalog.concat_ws(', ',
        CASE g.tgenabled WHEN 'A' THEN 'always' WHEN 'D' THEN 'disabled' ELSE 'enabled ' || g.tgenabled::text END,
        'type ' || g.tgtype::text, f.nspname || '.' || p.proname,
        CASE WHEN g.tgqual IS NOT NULL THEN 'with a condition' END,
        CASE WHEN g.tgattr::text <> '' THEN 'of columns' END, CASE WHEN g.tgnargs > 0 THEN 'with arguments' END,
        CASE WHEN g.tgisinternal THEN 'internal' END, CASE WHEN g.tgdeferrable THEN 'deferrable' END)
    FROM pg_catalog.pg_trigger AS g
    JOIN pg_catalog.pg_class AS c ON c.oid = g.tgrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_proc AS p ON p.oid = g.tgfoid
    JOIN pg_catalog.pg_namespace AS f ON f.oid = p.pronamespace
    WHERE n.nspname = 'compaction_store' AND NOT c.relispartition AND NOT (g.tgisinternal AND (
        p.oid < 16384 AND p.proname ~ '^(RI_FKey_|unique_key_recheck$)'
        OR f.nspname = 'pg_catalog' AND p.proname = 'citus_truncate_trigger'))
"""
_POLICIES = """
    SELECT pg_catalog.format('policy %%s.%%s', c.relname, p.polname), pg_catalog.concat_ws(', ',
        CASE WHEN p.polpermissive THEN 'permissive' ELSE 'restrictive' END, 'for ' || p.polcmd::text,
        CASE WHEN p.polroles = '{0}' THEN 'to all' ELSE 'to some' END,
        'using ' || pg_catalog.pg_get_expr(p.polqual, p.polrelid),
        'check ' || pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid))
    FROM pg_catalog.pg_policy AS p
    JOIN pg_catalog.pg_class AS c ON c.oid = p.polrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND NOT c.relispartition
"""
_RULES_AND_CHILDREN = """
    SELECT pg_catalog.format('rule %%s.%%s', c.relname, r.rulename), 'on ' || r.ev_type::text
    FROM pg_catalog.pg_rewrite AS r
    JOIN pg_catalog.pg_class AS c ON c.oid = r.ev_class
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
        AND r.rulename <> '_RETURN'
    UNION ALL
    SELECT pg_catalog.format('inheritance of %%s.%%s from %%s', cn.nspname, c.relname, p.relname), 'there'
    FROM pg_catalog.pg_inherits AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
    JOIN pg_catalog.pg_namespace AS cn ON cn.oid = c.relnamespace
    JOIN pg_catalog.pg_class AS p ON p.oid = i.inhparent
    JOIN pg_catalog.pg_namespace AS pn ON pn.oid = p.relnamespace
    WHERE 'compaction_store' IN (cn.nspname, pn.nspname) AND c.relkind <> 'i' AND NOT c.relispartition
"""
# Functions are grouped by name, because a second function with other arguments could be called instead.
_FUNCTIONS = """
    SELECT f.subject, f.fact FROM (
        SELECT p.proname || '()' AS name,
            pg_catalog.string_agg(pg_catalog.concat_ws(', ',
                l.lanname::text,
                CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' END,
                CASE WHEN p.proisstrict THEN 'strict' END, CASE WHEN p.proleakproof THEN 'leakproof' END,
                CASE WHEN p.prokind <> 'f' THEN 'of kind ' || p.prokind::text END,
                CASE WHEN p.prosecdef THEN 'security definer' END,
                CASE WHEN p.proparallel <> 'u' THEN 'parallel ' || p.proparallel::text END,
                CASE WHEN p.procost <> 100 OR p.prorows NOT IN (0, 1000) THEN 'of another cost' END,
                CASE WHEN p.prosqlbody IS NOT NULL THEN 'with a second body' END,
                CASE WHEN p.probin IS NOT NULL OR p.prosupport <> 0 OR p.protrftypes IS NOT NULL
                    THEN 'with another support' END,
                'takes ' || pg_catalog.pg_get_function_arguments(p.oid),
                'returns ' || pg_catalog.pg_get_function_result(p.oid)), ' and ' ORDER BY p.oid) AS says,
            pg_catalog.string_agg(coalesce(
                (SELECT pg_catalog.string_agg(s, '; ' ORDER BY s) FROM pg_catalog.unnest(p.proconfig) AS s), 'none'
            ), ' and ') AS settings,
            pg_catalog.string_agg(
                pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(p.prosrc, 'UTF8')), 'hex'), ' and '
            ) AS body,
            pg_catalog.string_agg(DISTINCT pg_catalog.pg_get_userbyid(p.proowner)::text, ' and ') AS owner
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
        WHERE n.nspname = 'compaction_store'
        GROUP BY p.proname
    ) AS g
    CROSS JOIN LATERAL (VALUES
        ('function ' || g.name, g.says), ('settings of function ' || g.name, g.settings),
        ('body of function ' || g.name, g.body), ('owner of function ' || g.name, g.owner)
    ) AS f (subject, fact)
"""
_GRANTS = """
    SELECT pg_catalog.format('grant on %%s to %%s', o.name,
            CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(a.grantee)::text END),
        pg_catalog.string_agg(
            DISTINCT a.privilege_type || CASE WHEN a.is_grantable THEN ' with grant option' ELSE '' END, ', ')
    FROM (
        SELECT c.relname::text AS name, c.relowner AS owner,
            coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner)) AS acl
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'compaction_store' AND c.relkind NOT IN ('i', 'I', 't', 'c')
            AND NOT c.relispartition
        UNION ALL
        SELECT pg_catalog.format('%%s.%%s', c.relname, t.attname), c.relowner, t.attacl
        FROM pg_catalog.pg_attribute AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.attrelid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'compaction_store' AND t.attacl IS NOT NULL AND NOT t.attisdropped
            AND NOT c.relispartition
        UNION ALL
        SELECT p.proname || '()', p.proowner,
            coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
        FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'compaction_store'
        UNION ALL
        SELECT 'the schema', n.nspowner, coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))
        FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'compaction_store'
    ) AS o
    CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) AS a
    WHERE a.grantee <> o.owner
    GROUP BY o.name, a.grantee
"""
_ROLES = """
    SELECT 'role ' || r.rolname, pg_catalog.concat_ws(', ',
        'there', CASE WHEN r.rolcanlogin THEN 'login' END, CASE WHEN r.rolsuper THEN 'superuser' END,
        CASE WHEN r.rolcreaterole THEN 'createrole' END, CASE WHEN r.rolcreatedb THEN 'createdb' END,
        CASE WHEN r.rolreplication THEN 'replication' END,
        CASE WHEN r.rolbypassrls THEN 'bypassrls' END)
    FROM pg_catalog.pg_roles AS r WHERE r.rolname = ANY (%(ours)s::text[])
    UNION ALL
    SELECT pg_catalog.format('membership of %%s in %%s', m.rolname, g.rolname), 'there'
    FROM pg_catalog.pg_auth_members AS a
    JOIN pg_catalog.pg_roles AS m ON m.oid = a.member
    JOIN pg_catalog.pg_roles AS g ON g.oid = a.roleid
    WHERE m.rolname = ANY (%(ours)s::text[])
"""
# Kinds of objects that the shipped schema does not have.
_STRAYS = """
    SELECT s.subject, 'there' FROM pg_catalog.pg_namespace AS n
    CROSS JOIN LATERAL (
        SELECT pg_catalog.format('operator %%s (%%s, %%s)', o.oprname, o.oprleft::regtype, o.oprright::regtype)
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
        SELECT pg_catalog.format('default privileges of %%s on kind %%s',
            pg_catalog.pg_get_userbyid(d.defaclrole), d.defaclobjtype)
        FROM pg_catalog.pg_default_acl AS d
        WHERE d.defaclnamespace = n.oid
            OR d.defaclnamespace = 0 AND pg_catalog.pg_get_userbyid(d.defaclrole) = 'compaction_store_owner'
        UNION ALL
        -- A view or a SECURITY DEFINER function of the owner's role, in another schema, acts with that role's rights.
        SELECT pg_catalog.format('%%s %%s, which belongs to %%s,', i.type, i.identity,
            pg_catalog.pg_get_userbyid(d.refobjid))
        FROM pg_catalog.pg_shdepend AS d
        JOIN pg_catalog.pg_database AS b ON b.oid = d.dbid AND b.datname = pg_catalog.current_database()
        CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid) AS i
        WHERE d.refclassid = 'pg_authid'::regclass AND d.deptype = 'o'
            AND pg_catalog.pg_get_userbyid(d.refobjid) = ANY (%(ours)s::text[])
            AND d.classid <> 'pg_default_acl'::regclass AND i.schema IS DISTINCT FROM n.nspname
            AND NOT (d.classid = 'pg_namespace'::regclass AND d.objid = n.oid)
        UNION ALL
        SELECT 'table pg_catalog.pg_dist_partition without Citus'
        WHERE pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'citus')
    ) AS s (subject)
    WHERE n.nspname = 'compaction_store'
"""
_STATEMENTS = (
    _TABLES, _COLUMNS, _VIEWS, _CONSTRAINTS, _INDEXES, _TRIGGERS, _POLICIES, _RULES_AND_CHILDREN, _FUNCTIONS, _GRANTS,
    _STRAYS,
)  # fmt: skip
_OURS = {"ours": list(GROUPS)}
# Facts that an administrator may intend, so they are notes and not findings. Each is one line of text.
_NOTES = """
    SELECT 'event triggers, which may change the objects that a migration creates: '
        || pg_catalog.string_agg(e.evtname::text, ', ' ORDER BY e.evtname)
    FROM pg_catalog.pg_event_trigger AS e JOIN pg_catalog.pg_proc AS p ON p.oid = e.evtfoid
    WHERE e.evtenabled <> 'D'
        AND NOT (p.proname = 'citus_drop_trigger' AND p.pronamespace = 'pg_catalog'::regnamespace)
    HAVING count(*) > 0
    UNION ALL
    SELECT 'publications, which send stored rows to other servers: '
        || pg_catalog.string_agg(DISTINCT p.pubname::text, ', ' ORDER BY p.pubname::text)
    FROM pg_catalog.pg_publication_tables AS p WHERE p.schemaname = 'compaction_store' HAVING count(*) > 0
    UNION ALL
    SELECT 'subscriptions, which write without the functions: '
        || pg_catalog.string_agg(DISTINCT s.subname::text, ', ' ORDER BY s.subname::text)
    FROM pg_catalog.pg_subscription AS s
    JOIN pg_catalog.pg_subscription_rel AS r ON r.srsubid = s.oid
    JOIN pg_catalog.pg_class AS c ON c.oid = r.srrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' HAVING count(*) > 0
    UNION ALL
    SELECT 'replica identity is not the key: ' || pg_catalog.string_agg(c.relname::text, ', ' ORDER BY c.relname)
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relkind = 'r' AND c.relreplident <> 'd' HAVING count(*) > 0
"""


# On Citus, each shard has its own policies and its own triggers. The name of a trigger ends with the shard's number.
_IS_SHARDED = "SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_shard') IS NOT NULL"
_SHARDED = """
    SELECT c.relname::text FROM pg_catalog.pg_dist_partition AS d
    JOIN pg_catalog.pg_class AS c ON c.oid = d.logicalrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'compaction_store' AND c.relname = ANY (%b::text[])
"""
_ON_SHARDS = """
    SELECT s.shardid::int8, s.success, s.result
    FROM pg_catalog.run_command_on_shards(pg_catalog.format('compaction_store.%%I', %b::text)::regclass, %b::text) AS s
"""
_ON_SHARD = """
    SELECT pg_catalog.concat_ws(', ', CASE WHEN c.relrowsecurity THEN 'row security' ELSE 'no row security' END,
            CASE WHEN c.relforcerowsecurity THEN 'forced' END,
            CASE WHEN NOT c.relhastriggers THEN 'triggers not looked for' END)
        || '; policies ' || coalesce((
            SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', p.polname,
                CASE WHEN NOT p.polpermissive THEN 'restrictive' END, p.polcmd::text,
                CASE WHEN p.polroles <> '{0}' THEN 'to some' END,
                'using ' || pg_catalog.pg_get_expr(p.polqual, p.polrelid),
                'check ' || pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid)), '; ' ORDER BY p.polname)
            FROM pg_catalog.pg_policy AS p WHERE p.polrelid = c.oid), 'none')
        || '; triggers ' || coalesce((
            SELECT pg_catalog.string_agg(pg_catalog.regexp_replace(g.tgname, '_[0-9]+$', '') || ' '
                || g.tgenabled::text || ' ' || g.tgtype::text, '; ' ORDER BY g.tgname)
            FROM pg_catalog.pg_trigger AS g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal), 'none')
    FROM pg_catalog.pg_class AS c WHERE c.oid = '%s'::regclass
"""
_ON_NODES = """
    SELECT pg_catalog.format('%%s:%%s', w.nodename, w.nodeport), w.result
    FROM pg_catalog.run_command_on_workers(%b::text) AS w
"""
# A digest of all properties that determine the behaviour of the functions.
_ON_NODE = """
    SELECT coalesce(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.string_agg(
        pg_catalog.concat_ws(' ', p.proname, pg_catalog.pg_get_function_arguments(p.oid), l.lanname,
            p.provolatile::text, p.prosecdef::text, p.proconfig::text, pg_catalog.pg_get_userbyid(p.proowner)::text,
            p.prosrc, (p.prosqlbody IS NOT NULL)::text),
        ' ' ORDER BY p.proname, p.oid), 'UTF8')), 'hex'), 'none')
    FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
    WHERE n.nspname = 'compaction_store'
"""


class ClusterFacts(NamedTuple):
    """The shards and nodes of a cluster. All fields are empty on a single server."""

    #: For each shard: its table, its number, and its policies and triggers as a text.
    shards: Sequence[tuple[str, int, str]] = ()
    #: For each worker: its name and the digest of its functions.
    nodes: Sequence[tuple[str, str]] = ()
    #: The digest of the coordinator's functions.
    functions: str = ""


class Facts(NamedTuple):
    """The facts about the schema of a database. `facts`, `roles` and `partitions` map subjects to descriptions."""

    facts: dict[str, str]
    roles: dict[str, str]
    members: Sequence[Member] = ()
    notes: Sequence[str] = ()
    cluster: ClusterFacts = ClusterFacts()
    partitions: Mapping[str, str] = MappingProxyType({})

    @property
    def layout(self) -> Layout:
        return CLUSTER if self.cluster.shards else SERVER


def read(connection: Connection) -> Facts:
    """Reads all facts in one snapshot."""
    with queries.reading(connection):
        found: dict[str, str] = {}
        for statement in _STATEMENTS:
            found.update(queries.fetch(connection, statement, _OURS))
        roles: dict[str, str] = dict(queries.fetch(connection, _ROLES, _OURS))
        members = role_members.read(connection)
        notes = [note for (note,) in queries.fetch(connection, _NOTES)]
        cluster = _cluster(connection)
        return Facts(found, roles, members, notes, cluster, partitions.read(connection))


def _cluster(connection: Connection) -> ClusterFacts:
    shards = _shards(connection) if queries.fetch(connection, _IS_SHARDED)[0][0] else []
    if not shards:
        return ClusterFacts()
    nodes: list[tuple[str, str]] = [*queries.fetch(connection, _ON_NODES, (_ON_NODE,))]
    [(functions,)] = queries.fetch(connection, _ON_NODE)
    return ClusterFacts(shards, nodes, functions)


def _shards(connection: Connection) -> list[tuple[str, int, str]]:
    """Reads the policies and triggers of each shard as a text. For an unreachable shard, the text is the error."""
    names = [table.name for table in (*tables.metadata.sorted_tables, tables.names, tables.turns)]
    return [
        (name, shard, result)
        for (name,) in queries.fetch(connection, _SHARDED, (names,))
        for shard, _, result in queries.fetch(connection, _ON_SHARDS, (name, _ON_SHARD))
    ]
