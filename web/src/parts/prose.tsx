import type { ReactNode } from 'react';
import { visible } from '../model/format';

/** The little Markdown that agents write: paragraphs, lists, code. Everything else stays as it was typed. */
export function Prose({ children }: { children: string }) {
  return <div className="prose">{children.split(/^```.*$/m).map(block)}</div>;
}

function block(text: string, place: number): ReactNode {
  if (place % 2 === 1) {
    return (
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
      <pre key={place} className="term" tabIndex={0}>
        {visible(text.replace(/^\n|\n$/g, ''))}
      </pre>
    );
  }
  return text
    .split(/\n{2,}/)
    .filter((part) => part.trim())
    .map((part, number) => paragraph(part, `${place}.${number}`));
}

const ITEM = /^\s*(?:[-*]|\d+\.)\s+/;

function paragraph(text: string, key: string): ReactNode {
  const lines = text.trim().split('\n');
  if (lines.every((line) => ITEM.test(line))) {
    return (
      <ul key={key}>
        {lines.map((line, number) => (
          <li key={number}>
            <bdi>{inline(line.replace(ITEM, ''))}</bdi>
          </li>
        ))}
      </ul>
    );
  }
  return (
    <p key={key}>
      <bdi>{inline(text.trim().replace(/^#+\s+/, ''))}</bdi>
    </p>
  );
}

/** A line of an agent with its code and emphasis. */
export const Line = ({ children }: { children: string }) => <bdi>{inline(children)}</bdi>;

function inline(text: string): ReactNode[] {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, place) => {
    if (place % 2 === 0) return visible(part);
    return part.startsWith('`') ? (
      <code key={place}>{visible(part.slice(1, -1))}</code>
    ) : (
      <b key={place}>{visible(part.slice(2, -2))}</b>
    );
  });
}
