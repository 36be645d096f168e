import { useRouter } from '@tanstack/react-router';
import type { CSSProperties, MouseEvent, ReactNode } from 'react';
import type { Work } from '../api/client';
import { shortId } from '../model/format';

interface AnchorProps {
  href: string;
  className?: string;
  style?: CSSProperties;
  children: ReactNode;
}

/** A link inside the page. The router's own watches where one is, which is too much for long lists. */
function Anchor({ href, children, ...more }: AnchorProps) {
  const router = useRouter();
  const go = (event: MouseEvent) => {
    const elsewhere = event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
    if (event.defaultPrevented || event.button !== 0 || elsewhere) return;
    event.preventDefault();
    router.navigate({ to: href });
  };
  return (
    <a href={href} onClick={go} {...more}>
      {children}
    </a>
  );
}

const placeOf = (id: string, tab?: string): string =>
  `/${id.startsWith('run_') ? 'runs' : 'tasks'}/${id}${tab ? `/${tab}` : ''}`;

interface Props {
  work: Work;
  tab?: string;
  /** The target on the page: `continue` is the field for the next message. */
  hash?: string;
  className?: string;
  children: ReactNode;
}

export const WorkLink = ({ work, tab, hash, className, children }: Props) => (
  <Anchor href={`${placeOf(work.id, tab)}${hash ? `#${hash}` : ''}`} className={className}>
    {children}
  </Anchor>
);

interface ToProps {
  id: string | null | undefined;
  tab?: string;
  className?: string;
  style?: CSSProperties;
  children: ReactNode;
}

/** A link to a task or run of which only the id is known; without one, only what it would hold. */
export function WorkTo({ id, tab, className, style, children }: ToProps) {
  if (!id) {
    return (
      <span className={className} style={style}>
        {children}
      </span>
    );
  }
  return (
    <Anchor href={placeOf(id, tab)} className={className} style={style}>
      {children}
    </Anchor>
  );
}

export const WorkId = ({ id }: { id: string }) => (
  <WorkTo id={id} className="faint mono">
    {shortId(id)}
  </WorkTo>
);
