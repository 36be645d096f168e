import { Link, useNavigate, useSearch } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { type Hit, useOne, useSearched } from '../api/queries';
import { counted, moment } from '../model/format';
import { stateOf } from '../model/work';
import { Empty, Loading, Problem } from '../parts/controls';
import { Glyph } from '../parts/glyph';
import { Icon } from '../parts/icon';
import { Said } from '../parts/text';
import { View as Frame } from '../shell/layout';
import { useScope } from '../shell/preferences';

const MOST = 200;
/** So many finds of one piece of work are shown before one asks for the others. */
const FIRST = 3;
const KINDS: [Hit['kind'], string][] = [
  ['output', 'Output'],
  ['prompt', 'Prompts'],
  ['message', 'What you said'],
  ['result', 'Results'],
  ['commit', 'Commits'],
  ['learning', 'Knowledge'],
  ['note', 'Notes'],
];
const PLACES: Record<string, string> = { learning: '/knowledge', note: '/knowledge/notes' };

/** Search in prompts, results, output, commits, learnings and notes. */
export function View() {
  const { q = '' } = useSearch({ from: '/inside/search' });
  const navigate = useNavigate();
  const [typed, setTyped] = useState(q);
  const [project] = useScope();
  const [kind, narrow] = useState<Hit['kind'] | null>(null);
  const found = useSearched(q, q.trim() !== '', MOST, project);
  const all = found.data?.hits ?? [];
  const hits = kind ? all.filter((hit) => hit.kind === kind) : all;
  const works = [...Map.groupBy(hits, (hit) => `${PLACES[hit.kind] ?? ''} ${hit.id}`).values()];
  const submit = (event: FormEvent) => {
    event.preventDefault();
    narrow(null);
    navigate({ to: '/search', search: { q: typed.trim() || undefined } });
  };
  return (
    <Frame title="Search">
      <div className="page searchpage">
        <form className="searchbox" onSubmit={submit}>
          <Icon name="search" />
          <input
            // biome-ignore lint/a11y/noAutofocus: one comes here to type
            autoFocus
            aria-label="Search"
            placeholder="Words, or a phrase in “quotation marks”"
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
          <kbd>↵</kbd>
        </form>
        <Problem error={found.error} />
        {q && found.isPending && <Loading lines={6} />}
        {found.data && all.length === 0 && (
          <Empty title="No results">
            <p>Results match all words. Running work is searchable after it ends.</p>
          </Empty>
        )}
        {!q && (
          <p className="faint mt-4">
            Searches prompts, results, output and commits of ended work, learnings and notes.
          </p>
        )}
        {all.length > 0 && (
          <div className="facets">
            <nav className="facet" aria-label="Filter">
              <h2>Where</h2>
              <Facet name="All" count={all.length} on={kind === null} choose={() => narrow(null)} />
              {KINDS.map(([one, name]) => {
                const count = all.filter((hit) => hit.kind === one).length;
                const choose = () => narrow(one);
                return count > 0 && <Facet key={one} {...{ name, count, choose }} on={kind === one} />;
              })}
            </nav>
            <div className="min-w-0">
              <p className="faint finds">
                {counted(hits.length, 'match', 'matches')}
                {all.length >= MOST && ' or more'} in {counted(works.length, 'item')}
                {!found.data?.complete && '; some ended work is not indexed yet'}
              </p>
              {works.map((own) => (
                <Found key={`${own[0]?.kind} ${own[0]?.id}`} hits={own} words={wordsOf(q)} />
              ))}
            </div>
          </div>
        )}
      </div>
    </Frame>
  );
}

const Facet = (props: { name: string; count: number; on: boolean; choose: () => void }) => (
  <button type="button" aria-pressed={props.on} onClick={props.choose}>
    <span className="cut">{props.name}</span>
    <span className="n">{props.count}</span>
  </button>
);

const wordsOf = (query: string): string[] =>
  query
    .toLowerCase()
    .split(/[\s"“”]+/)
    .filter(Boolean);

/** All that was found in one piece of work, learning or note. */
function Found({ hits, words }: { hits: Hit[]; words: string[] }) {
  const [open, unfold] = useState(false);
  const [first] = hits;
  const isWork = !!first && /^(task|run)_/.test(first.id);
  const work = useOne(isWork ? first.id : '', isWork).data;
  const title = useTitle(first);
  if (!first) return null;
  const shown = open ? hits : hits.slice(0, FIRST);
  const rest = hits.length - shown.length;
  return (
    <section className="hit">
      <header>
        {work ? <Glyph state={stateOf(work)} /> : <Icon name="knowledge" />}
        <Link className="t cut" {...placeOf(first)}>
          <Said>{work?.title ?? title}</Said>
        </Link>
        {work && <span className="end">{moment(work.ended_at ?? work.created_at)}</span>}
      </header>
      {work && first.project && (
        <p className="where">
          <Said>{first.project}</Said>
        </p>
      )}
      {shown.map((hit) => (
        <div key={`${hit.kind} ${hit.attempt} ${hit.stream} ${hit.offset} ${hit.text}`} className="ctx">
          <div className="loc">
            <span>{whereOf(hit)}</span>
            <Link {...placeOf(hit, words[0])}>{hit.kind === 'output' ? 'Open there' : 'Open'}</Link>
          </div>
          <p className={hit.kind === 'output' ? 'mono' : ''}>
            <Marked text={hit.kind === 'output' ? hit.text : withoutSigns(hit.text)} words={words} />
          </p>
        </div>
      ))}
      {rest > 0 && (
        <button type="button" className="more" onClick={() => unfold(true)}>
          {counted(rest, 'more match', 'more matches')} here
        </button>
      )}
    </section>
  );
}

const ID = /(?:task|run)_[0-9a-z]{26}/;

/** The title of a match; a note of a run gets the run's title instead of its id. */
function useTitle(hit: Hit | undefined): string {
  const title = hit?.title ?? '';
  const id = hit?.kind === 'note' ? (ID.exec(title) ?? ID.exec(hit.project ?? ''))?.[0] : undefined;
  const work = useOne(id ?? '', id !== undefined).data;
  if (!id || !work) return title;
  const key = title.includes(id) ? title.slice(title.indexOf(id) + id.length + 1) : title;
  return `${key || title} of ${work.title}`;
}

/** Markdown as plain text. */
const withoutSigns = (text: string): string =>
  text
    .replace(/```[a-z]*/g, '')
    .replace(/\*\*|`/g, '')
    .replace(/^#+\s+/gm, '');

const NAMES = new Map(KINDS.map(([kind, name]) => [kind as string, name.replace(/s$/, '')]));

function whereOf(hit: Hit): string {
  const name = hit.kind === 'learning' ? 'Learning' : (NAMES.get(hit.kind) ?? hit.kind);
  if (hit.kind !== 'output') return name;
  const stream = hit.stream === 'err' ? 'Error output' : name;
  return `${stream} of attempt ${hit.attempt}, byte ${hit.offset?.toLocaleString('en')}`;
}

/** A link to the place of a match; output opens at the first word. */
function placeOf(hit: Hit, word?: string): { to: string; search?: Record<string, string> } {
  if (hit.kind === 'note')
    return { to: '/knowledge/notes', search: { scope: hit.project ?? 'global', note: hit.id } };
  if (PLACES[hit.kind]) return { to: PLACES[hit.kind] ?? '/' };
  const to = `/${hit.id.startsWith('run_') ? 'runs' : 'tasks'}/${hit.id}`;
  if (hit.kind !== 'output') return { to };
  return { to: `${to}/output`, search: word ? { find: word } : undefined };
}

/** A text in which words are marked. */
function Marked({ text, words }: { text: string; words: string[] }) {
  const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  if (escaped.length === 0) return <Said>{text}</Said>;
  const parts = text.split(new RegExp(`(${escaped.join('|')})`, 'i'));
  return parts.map((part, place) =>
    place % 2 === 1 ? (
      <mark key={place}>
        <Said>{part}</Said>
      </mark>
    ) : (
      <Said key={place}>{part}</Said>
    ),
  );
}
